"""F07: many submits with one key at once, through two gateway processes, are one execution with equal answers."""

import asyncio
import itertools
from collections import Counter

import httpx
import pytest

from tests.system.rig import Rig

ROUNDS, AT_ONCE = 20, 50


@pytest.mark.full
@pytest.mark.timeout(120)
async def test_f07_one_execution_for_each_key(rig: Rig) -> None:
    rig.settings["TASKGATE_TENANT_HEADER"] = "X-Tenant"
    await rig.worker()
    await rig.gateway()
    ports = (rig.port, await rig.another_gateway())
    clients = [
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30, limits=httpx.Limits(max_connections=25)
        )
        for port in ports
    ]

    unsure: set[str] = set()

    async def post(client: httpx.AsyncClient, key: str, tenant: str = "a", ms: int = 1) -> httpx.Response:
        headers = {"Idempotency-Key": key, "X-Tenant": tenant}
        body = {"type": "cpu", "payload": {"ms": ms}}
        while (answer := await client.post("/tasks", json=body, headers=headers)).status_code == 503:
            unsure.add(key)  # Redis was silent for 2 s, as it is while its disk is busy: again, as it is asked for
            await asyncio.sleep(float(answer.headers["retry-after"]))
        return answer

    ids = []
    for n in range(ROUNDS):
        turns = itertools.islice(itertools.cycle(clients), AT_ONCE)
        answers = await asyncio.gather(*(post(client, f"key {n}") for client in turns))
        assert {answer.status_code for answer in answers} == {202}
        [task_id] = {answer.json()["id"] for answer in answers}
        new = sum("idempotent-replayed" not in answer.headers for answer in answers)
        assert new == 1 or (new == 0 and f"key {n}" in unsure), "by the answers, of which one may be lost"
        ids.append(task_id)

    for n, task_id in enumerate(ids):
        ended = await rig.http.get(f"/tasks/{task_id}", params={"wait": 30}, headers={"X-Tenant": "a"}, timeout=40)
        assert ended.json()["status"] == "succeeded"
        other_body = await post(clients[n % 2], f"key {n}", ms=2)
        assert (other_body.status_code, other_body.json()["type"]) == (422, "/problems/idempotency-key-reused")
        replay = await post(clients[n % 2], f"key {n}")
        assert (replay.status_code, replay.json()["id"], replay.json()["status"]) == (202, task_id, "succeeded")
    theirs = await post(clients[0], "key 0", tenant="b")
    assert (theirs.status_code, "idempotent-replayed" in theirs.headers) == (202, False)
    ended = await rig.http.get(
        f"/tasks/{theirs.json()['id']}", params={"wait": 30}, headers={"X-Tenant": "b"}, timeout=40
    )
    assert ended.json()["status"] == "succeeded"
    for client in clients:
        await client.aclose()

    executed = Counter(run.task_id for run in rig.runs())
    assert executed == Counter([*ids, theirs.json()["id"]]), "by what the handlers did"

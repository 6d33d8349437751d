"""F08, as far as it is no webhook: who gives an event's id as the key may repeat it as often as it likes."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.system.rig import Rig

WITHIN_S = 3


@pytest.mark.full
@pytest.mark.timeout(120)
async def test_f08_one_job_per_event_however_busy_the_workers_are(rig: Rig) -> None:
    await rig.worker(TASKGATE_WORKER_PROCESSES="1", TASKGATE_ASYNC_PROCESSES="0")
    await rig.gateway()
    await rig.running(await rig.submit("sleeper", {"ms": 6000}, priority=9), within_s=30)
    slowest_s = 0.0

    async def deliver(event: str, *, at: str, ms: int = 0) -> httpx.Response:
        nonlocal slowest_s
        body: dict[str, Any] = {"type": "cpu", "payload": {"ms": ms}, "metadata": {"event": event, "at": at}}
        while True:
            started = time.monotonic()
            answer = await rig.http.post("/tasks", json=body, headers={"Idempotency-Key": event})
            slowest_s = max(slowest_s, time.monotonic() - started)
            if answer.status_code != 503:  # Redis was silent for 2 s, as it is while its disk is busy: again
                return answer
            await asyncio.sleep(float(answer.headers["retry-after"]))

    newer = await deliver("evt_2", at="2026-11-30T10:00:02Z")
    together = await asyncio.gather(*(deliver("evt_1", at="2026-11-30T10:00:01Z") for _ in range(20)))
    spread = []
    for _ in range(20):
        spread.append(await deliver("evt_1", at="2026-11-30T10:00:01Z"))
        await asyncio.sleep(0.15)
    assert {answer.status_code for answer in (newer, *together, *spread)} == {202}
    [task_id] = {answer.json()["id"] for answer in (*together, *spread)}
    assert newer.json()["id"] != task_id
    assert slowest_s < 5 * WITHIN_S
    other = await deliver("evt_1", at="2026-11-30T10:00:01Z", ms=1)
    assert (other.status_code, other.json()["type"]) == (422, "/problems/idempotency-key-reused")

    ended = [await rig.ended(task_id), await rig.ended(newer.json()["id"])]
    assert [task["status"] for task in ended] == ["succeeded"] * 2
    assert [task["metadata"]["event"] for task in ended] == ["evt_1", "evt_2"]
    late = await deliver("evt_1", at="2026-11-30T10:00:01Z")
    assert (late.status_code, late.json()["id"], late.json()["status"]) == (202, task_id, "succeeded")
    executed = sorted(run.task_id for run in rig.runs() if run.task_id in (task_id, newer.json()["id"]))
    assert executed == sorted([task_id, newer.json()["id"]])

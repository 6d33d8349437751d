"""A unique key is free as soon as its task has ended, whatever has crashed, and is never free before."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.conftest import eventually
from tests.system.rig import Rig

pytestmark = pytest.mark.full


async def post(rig: Rig, task_type: str, payload: dict[str, int], **more: Any) -> httpx.Response:
    return await rig.http.post("/tasks", json={"type": task_type, "payload": payload, "unique_key": "u", **more})


@pytest.mark.timeout(120)
async def test_a_key_is_free_whatever_its_task_has_died_of(rig: Rig) -> None:
    rig.settings["TASKGATE_LEASE_S"] = "1"
    supervisor = await rig.worker(TASKGATE_ASYNC_PROCESSES="0")
    await rig.gateway()

    async def accepted_as_new(task_type: str, payload: dict[str, int], **more: Any) -> str:
        answer = await post(rig, task_type, payload, on_conflict="refuse", max_attempts=1, **more)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    for task_type, payload, more in (
        ("cpu", {"ms": 1}, {}),
        ("fails", {}, {}),
        ("exits", {}, {}),
        ("sleeper", {"ms": 60_000}, {"timeout_s": 0.2}),
        ("cpu", {"ms": 1}, {"delay_s": 60, "deadline_s": 0.1}),
    ):
        await rig.ended(await accepted_as_new(task_type, payload, **more))

    lost = await accepted_as_new("sleeper", {"ms": 60_000})
    await rig.running(lost)
    assert (await post(rig, "cpu", {"ms": 1}, on_conflict="replace")).json()["task_id"] == lost
    await rig.worker(TASKGATE_ASYNC_PROCESSES="0")
    supervisor.kill()
    supervisor.wait()
    assert (await rig.ended(lost))["error"]["kind"] == "lost"
    await rig.ended(await accepted_as_new("cpu", {"ms": 1}))


async def test_a_task_goes_on_as_its_own_successor_one_at_a_time(rig: Rig) -> None:
    await rig.worker()
    await rig.gateway()
    first = await rig.submit("again", {"n": 4}, unique_key="again")
    beside = await rig.http.post("/tasks", json={"type": "again", "payload": {"n": 0}, "unique_key": "again"})
    ids = {first, beside.json()["id"]}
    count = 5 if "unique-existing" in beside.headers else 6  # on a machine so slow that the last one had ended

    async def ran() -> int:
        return len(rig.runs())

    await eventually(ran, lambda found: found == count, within_s=60)
    await asyncio.gather(*(rig.ended(run.task_id) for run in rig.runs()))
    tasks = await asyncio.gather(*(rig.task(run.task_id) for run in rig.runs()))
    assert len({task["id"] for task in tasks}) == count, "each once"
    assert ids <= {task["id"] for task in tasks}
    assert {task["status"] for task in tasks} == {"succeeded"}

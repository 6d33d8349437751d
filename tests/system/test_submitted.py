"""What is accepted runs: from a handler, of a kind that has children, in every partition."""

from tests.conftest import eventually
from tests.system.rig import Rig


async def test_what_a_handler_submits_runs_and_reads_like_any_other_task(rig: Rig) -> None:
    await rig.worker()
    await rig.gateway()
    parent = await rig.ended(await rig.submit("parent", {}))
    assert parent["status"] == "succeeded"

    plain, full = (await rig.http.get(f"/tasks/{parent['id']}/result")).json()
    ended = [await rig.ended(plain), await rig.ended(full)]
    assert [(task["status"], task["attempt"]) for task in ended] == [("succeeded", 1)] * 2
    assert [task["metadata"] for task in ended] == [None, {"a": 1}]
    assert (ended[1]["priority"], ended[1]["max_attempts"]) == (9, 2)
    assert (ended[1]["unique_key"], ended[1]["concurrency_key"]) == ("only", "few")

    async def usual_ms() -> dict[str, int]:
        [supervisor] = await rig.store.workers()
        assert supervisor.slots.keys() == supervisor.run_ms.keys()
        return supervisor.run_ms

    said = await eventually(usual_ms, lambda said: said.keys() == {"parent", "cpu"})
    assert 1 <= said["cpu"] < 10_000, "what estimates of such tasks are made of"


async def test_what_no_child_can_run_is_not_served(rig: Rig) -> None:
    await rig.worker(TASKGATE_ASYNC_PROCESSES="0")
    await rig.gateway()
    refused = await rig.http.post("/tasks", json={"type": "wait", "payload": {"ms": 1}})
    assert refused.status_code == 422
    assert (await rig.ended(await rig.submit("cpu", {"ms": 1})))["status"] == "succeeded"


async def test_tasks_of_every_partition_run(rig: Rig) -> None:
    rig.settings["TASKGATE_PARTITIONS"] = "3"
    await rig.worker()
    await rig.gateway()
    ids = [await rig.submit("cpu", {"ms": 1}) for _ in range(12)]
    ids.append(await rig.submit("cpu", {"ms": 1}, delay_s=0.2))
    assert len({int(task_id[-2:], 16) % 3 for task_id in ids}) > 1
    assert {(await rig.ended(task_id))["status"] for task_id in ids} == {"succeeded"}

"""Tasks that handlers submit: accepted with the parent's success, and run like any other."""

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


async def test_what_no_child_can_run_is_not_served(rig: Rig) -> None:
    await rig.worker(TASKGATE_ASYNC_PROCESSES="0")
    await rig.gateway()
    refused = await rig.http.post("/tasks", json={"type": "wait", "payload": {"ms": 1}})
    assert refused.status_code == 422
    assert (await rig.ended(await rig.submit("cpu", {"ms": 1})))["status"] == "succeeded"

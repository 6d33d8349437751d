"""A type that no live supervisor serves: its tasks fail after the set time, those of other types do not."""

import os
import signal

import pytest

from tests.system.rig import Rig, until_dead


@pytest.mark.full
async def test_a_type_whose_last_supervisor_is_gone_fails_while_another_lives(rig: Rig) -> None:
    """Counted only while the other one is alive: with both gone everything waits."""
    rig.settings |= {"TASKGATE_LEASE_S": "1", "TASKGATE_UNKNOWN_TYPE_AFTER_S": "3", "TASKGATE_ASYNC_PROCESSES": "0"}
    serves = await rig.worker(TASKGATE_HANDLERS="tests.system.jobs")
    await rig.gateway()
    other = await rig.worker(TASKGATE_HANDLERS="workers.handlers")
    os.kill(serves.pid, signal.SIGKILL)
    os.kill(other.pid, signal.SIGSTOP)
    await until_dead(serves.pid)
    waiting = [await rig.submit("cpu", {"ms": 1}) for _ in range(2)]

    assert {(await rig.task(task_id))["status"] for task_id in waiting} == {"queued"}
    os.kill(other.pid, signal.SIGCONT)
    ended = [await rig.ended(task_id, within_s=60) for task_id in waiting]
    assert [(task["status"], task["attempt"], task["error"]["kind"]) for task in ended] == [
        ("failed", 0, "unknown_type")
    ] * 2
    assert "no live supervisor has served task type cpu in queue default for 3 s" in ended[0]["error"]["message"]
    assert rig.runs() == []

    again = await rig.worker(TASKGATE_HANDLERS="tests.system.jobs")
    assert (await rig.ended(await rig.submit("cpu", {"ms": 1})))["status"] == "succeeded"
    assert again.poll() is None


@pytest.mark.full
async def test_a_type_whose_supervisor_comes_back_in_time_loses_nothing(rig: Rig) -> None:
    rig.settings["TASKGATE_UNKNOWN_TYPE_AFTER_S"] = "120"
    serves = await rig.worker(TASKGATE_HANDLERS="tests.system.jobs")
    await rig.gateway()
    await rig.worker(TASKGATE_HANDLERS="workers.handlers")
    serves.terminate()
    serves.wait(30)
    task_id = await rig.submit("cpu", {"ms": 1})
    await rig.worker(TASKGATE_HANDLERS="tests.system.jobs")
    ended = await rig.ended(task_id, within_s=30)
    assert (ended["status"], ended["attempt"]) == ("succeeded", 1)

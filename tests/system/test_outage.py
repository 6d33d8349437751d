"""Redis goes away and comes back: what runs is paused and goes on, nothing is burned."""

import asyncio
import signal
from functools import partial
from typing import Any

import pytest

from tests.conftest import eventually
from tests.processes import state_of
from tests.system.rig import FINAL, Rig

AOF = ("--appendonly", "yes", "--appendfsync", "always")
LONG = (pytest.mark.full, pytest.mark.timeout(200))


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "away_s"),
    [(signal.SIGKILL, 0), pytest.param(signal.SIGKILL, 20, marks=LONG), pytest.param(signal.SIGSTOP, 20, marks=LONG)],
)
async def test_tasks_pause_while_redis_is_away_and_go_on_in_the_same_attempt(
    rig: Rig, how: signal.Signals, away_s: float
) -> None:
    """Killed and restarted, or frozen. The pause is longer than their timeout, and uses none of it up."""
    rig.settings["TASKGATE_LEASE_S"] = "1"
    await rig.worker()
    await rig.gateway()
    back = rig.folder / "back"
    running = [await rig.submit("until", {"file": str(back)}, timeout_s=away_s or 30) for _ in range(2)]
    waiting = [await rig.submit("cpu", {"ms": 10}) for _ in range(5)]
    pids = await eventually(partial(_pids_of, rig, running), lambda pids: len(pids) == 2)

    assert rig.server.process is not None
    if how == signal.SIGKILL:
        rig.server.stop(how)
    else:
        rig.server.process.send_signal(how)
    assert (await rig.http.get("/livez")).status_code == 200
    assert (await rig.http.get("/readyz")).status_code == 503
    refused = await rig.http.post("/tasks", json={"type": "cpu", "payload": {"ms": 1}})
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    await eventually(partial(_stand_still, pids), bool, within_s=60)
    await asyncio.sleep(away_s)
    assert await _stand_still(pids)
    if how == signal.SIGKILL:
        rig.server.start(*AOF)
    else:
        rig.server.process.send_signal(signal.SIGCONT)
    back.touch()

    for task_id in running:
        ended = await eventually(partial(_task, rig, task_id), _is_final, within_s=60)
        assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
    for task_id in waiting:
        assert (await rig.ended(task_id))["status"] == "succeeded"
    assert len([run for run in rig.runs() if run.task_id in running]) == 2
    assert await rig.submit("cpu", {"ms": 1})


async def _pids_of(rig: Rig, task_ids: list[str]) -> list[int]:
    """Processes in which these tasks have started."""
    return [run.pid for run in rig.runs() if run.task_id in task_ids]


async def _stand_still(pids: list[int]) -> bool:
    """All are stopped, by the guard."""
    return all(state_of(pid) == "T" for pid in pids)


async def _task(rig: Rig, task_id: str) -> dict[str, Any]:
    answer = await rig.http.get(f"/tasks/{task_id}")
    return dict(answer.json())


def _is_final(task: dict[str, Any]) -> bool:
    return task.get("status") in FINAL

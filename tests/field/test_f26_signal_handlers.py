"""F26, a task changes the signal handlers: its worker stops as any other, and the next task has the defaults."""

import asyncio
import signal
import subprocess
import time

import pytest

from tests.conftest import eventually
from tests.system.rig import Rig

GRACE_S = 3.0
SLACK_S = 60.0
"""What a loaded machine may add."""


async def stopped(worker: "subprocess.Popen[bytes]") -> int:
    """Its exit code after SIGTERM."""
    worker.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    code = await asyncio.to_thread(worker.wait, GRACE_S + SLACK_S)
    assert time.monotonic() - begun < GRACE_S + SLACK_S
    return code


async def result(rig: Rig, task_type: str, payload: str) -> object:
    task_id = await rig.submit(task_type, payload)
    assert (await rig.ended(task_id, within_s=120))["status"] == "succeeded"
    return (await rig.http.get(f"/tasks/{task_id}/result")).json()


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "change", ["ignored", *(pytest.param(one, marks=pytest.mark.full) for one in ("swallowed", "blocked"))]
)
async def test_a_task_that_changes_its_signals_neither_stays_nor_stains(rig: Rig, change: str) -> None:
    rig.settings |= {
        "TASKGATE_HANDLERS": "tests.system.jobs,tests.field.leftovers",
        "TASKGATE_GRACE_S": str(GRACE_S),
        "TASKGATE_WORKER_PROCESSES": "1",
        "TASKGATE_LEASE_S": "90",
    }
    worker = await rig.worker()
    await rig.gateway()
    defaults = await result(rig, "sees", "")

    await result(rig, "changes", change)
    assert await result(rig, "sees", "") == defaults
    assert await stopped(worker) == 0, "idle"

    worker = await rig.worker()
    task_id = await rig.submit("changes.and.runs", change)
    await eventually(lambda: _started(rig), bool, within_s=120)
    assert await stopped(worker) == 0, "at work"
    task = await rig.task(task_id)
    assert (task["status"], task["attempt"]) == ("queued", 0), "handed back uncounted"


async def _started(rig: Rig) -> int:
    return len(rig.runs())

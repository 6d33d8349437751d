"""F25, a rolling deploy in the middle of a job: short ones finish, long ones move on at once, none is blamed."""

import signal
import subprocess
import time
from functools import partial

import pytest

from tests.conftest import dead_letters, eventually
from tests.system.rig import Rig, Run, overlaps, task_children

LONG = (pytest.mark.full, pytest.mark.timeout(400))
EACH = 20
SLACK_S = 20.0
"""What a loaded machine may add to a start or a stop."""
LEASE_S = "90"
"""A job that waited for the lease to run out would be seen."""


def runs_of(rig: Rig, *task_ids: str) -> list[Run]:
    return sorted((run for run in rig.runs() if run.task_id in task_ids), key=lambda run: run.start)


async def started(rig: Rig, task_ids: list[str], *, times: int = 1) -> None:
    async def count() -> int:
        return len(runs_of(rig, *task_ids))

    await eventually(count, lambda count: count >= times * len(task_ids), within_s=60)


async def exit_code(process: subprocess.Popen[bytes], *, within_s: float) -> int | None:
    async def code() -> int | None:
        return process.poll()

    return await eventually(code, lambda code: code is not None, within_s=within_s)


async def state(rig: Rig, worker: subprocess.Popen[bytes]) -> str:
    return next((each.state for each in await rig.store.workers() if each.pid == worker.pid), "gone")


@pytest.mark.parametrize(
    ("deploys", "grace_s", "short_ms", "long_ms"),
    [pytest.param(1, 8.0, 1000, 20_000, marks=LONG), pytest.param(3, 12.0, 3000, 36_000, marks=LONG)],
)
async def test_deploys_let_short_jobs_finish_and_move_long_ones_without_blame(
    rig: Rig, deploys: int, grace_s: float, short_ms: int, long_ms: int
) -> None:
    rig.settings |= {"TASKGATE_GRACE_S": str(grace_s), "TASKGATE_LEASE_S": LEASE_S}
    worker = await rig.worker()
    await rig.gateway()
    long = [await rig.submit("wait", {"ms": long_ms}, max_attempts=1) for _ in range(EACH)]
    await started(rig, long)
    for deploy in range(1, deploys + 1):
        short = [await rig.submit("wait", {"ms": short_ms}, max_attempts=1) for _ in range(EACH)]
        await started(rig, short)
        old, children = worker, task_children(worker.pid)
        old.send_signal(signal.SIGTERM)
        await eventually(partial(state, rig, old), lambda state: state in ("draining", "gone"))
        late = await rig.submit("cpu", {"ms": 1})
        worker = await rig.worker()
        assert await exit_code(old, within_s=grace_s + SLACK_S) == 0
        left_s = time.monotonic()
        await started(rig, long, times=deploy + 1)
        assert time.monotonic() - left_s < 5 + SLACK_S

        assert [(await rig.ended(task_id))["attempt"] for task_id in short] == [1] * EACH
        assert len(runs_of(rig, *short)) == EACH
        await rig.ended(late)
        assert runs_of(rig, late)[0].pid not in children, "taken after the signal"
    ends = [await rig.ended(task_id, within_s=long_ms / 1000 + 30) for task_id in long]
    assert [(end["status"], end["attempt"]) for end in ends] == [("succeeded", 1)] * EACH
    assert overlaps(rig.runs(), {}) == []
    assert await dead_letters(rig.store) == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
async def test_a_second_signal_ends_it_at_once_and_still_hands_back(rig: Rig, number: signal.Signals) -> None:
    rig.settings |= {"TASKGATE_GRACE_S": "120", "TASKGATE_LEASE_S": LEASE_S, "TASKGATE_WORKER_PROCESSES": "2"}
    worker = await rig.worker()
    await rig.gateway()
    tasks = [await rig.submit(kind, {"ms": 60_000}, max_attempts=1) for kind in ("sleeper", "stubborn", "wait")]
    await started(rig, tasks)
    worker.send_signal(number)
    await eventually(partial(state, rig, worker), lambda state: state == "draining")
    worker.send_signal(number)

    assert await exit_code(worker, within_s=5 + SLACK_S) == 0
    found = [await rig.task(task_id) for task_id in tasks]
    assert {(task["status"], task["attempt"]) for task in found} == {("queued", 0)}

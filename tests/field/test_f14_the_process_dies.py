"""F14, the process dies under the task: told with its cause, and no other task's result is touched."""

import signal

import pytest

from tests.system.death_rig import accept, ended, error, whole
from tests.system.rig import Rig

HANDLERS = "tests.field.misbehaving,tests.system.death_jobs"
pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]


@pytest.mark.parametrize(("count", "recycled"), [(200, False), (60, True)])
async def test_each_death_has_its_cause_and_every_echo_its_result(rig: Rig, count: int, recycled: bool) -> None:
    """A thread that a task leaves behind may kill the task after it, unless the task asked for a process of its own."""
    rig.settings |= {"TASKGATE_HANDLERS": HANDLERS, "TASKGATE_WORKER_PROCESSES": "4"}
    if recycled:
        rig.settings["TASKGATE_CHILD_MAX_TASKS"] = "1"
    supervisor = await rig.worker()
    echoes: dict[str, int] = {}
    deaths: dict[str, tuple[str, object]] = {}
    done: list[str] = []
    for n in range(count):
        echoes[await accept(rig, "echo", n, max_attempts=3)] = n
        if n % (count // 4) == 0:
            deaths[await accept(rig, "exits_at_once", max_attempts=2)] = ("exit_code", 7)
            deaths[await accept(rig, "raises_signal", int(signal.SIGSEGV), max_attempts=2)] = ("signal", "SIGSEGV")
            deaths[await accept(rig, "raises_signal", int(signal.SIGKILL), max_attempts=2)] = ("signal", "SIGKILL")
            done.append(await accept(rig, "dies_later_in_its_own", max_attempts=20))

    for record, (field, value) in zip(await ended(rig, *deaths, within_s=120), deaths.values(), strict=True):
        assert (record.status, record.attempt, error(record)[field]) == ("failed", 2, value)
    for record, n in zip(await ended(rig, *echoes), echoes.values(), strict=True):
        assert (record.status, record.attempt, record.result) == ("succeeded", 1, b"%d" % n)
    finished = await ended(rig, *done)
    runs = [run.task_id for run in rig.runs()]
    assert sorted(task_id for task_id in runs if task_id in echoes) == sorted(echoes)
    for record in finished:
        # On a busy machine 5 ms may be over before the end is sent: then it is no end, but a death.
        assert (record.status, record.result, record.attempt) == ("succeeded", b'"done"', runs.count(record.id))
    if not recycled:
        await whole(rig, supervisor.pid, sync=4)

"""Later or never: `delay_s`, `run_at` and `deadline_s` happen on time and once, whatever is restarted meanwhile."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from taskgate.contract.models import TaskRecord
from taskgate.contract.states import Status
from tests.conftest import eventually
from tests.system.rig import Rig

pytestmark = pytest.mark.full

AOF = ("--appendonly", "yes", "--appendfsync", "always")
ON_TIME_MS = 100
"""p99 on a quiet machine: what is printed there tells. Three tests at a time on two CPUs may be later."""


def assert_on_time(what: str, late_ms: list[float]) -> None:
    late = sorted(late_ms)
    p50, p95, p99 = (late[int(len(late) * part)] for part in (0.5, 0.95, 0.99))
    print(f"{what}: {len(late)}, {p50:.1f} ms late in the middle, p99 {p99:.1f} ms")
    assert p50 <= 5 * ON_TIME_MS
    assert p95 <= 20 * ON_TIME_MS


def wall_ms(boot_ns: int) -> float:
    """Unix ms of a stamp of the boot clock, which the same machine's Redis counts in, too."""
    # The most of several differences: between its two looks this process may be kept from running.
    ahead_ns = max(time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) for _ in range(20))
    return (ahead_ns + boot_ns) / 1e6


def at(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def submit_later(rig: Rig, starts_s: list[float]) -> dict[str, int]:
    """One task for each of these delays, in turn as `delay_s` and as `run_at`; id and due time in Unix ms by Redis,
    which is at once for one that a slow machine took in later than that.
    """
    when = [{"run_at": at(delay_s)} if n % 2 else {"delay_s": delay_s} for n, delay_s in enumerate(starts_s)]
    ids = await asyncio.gather(*(rig.submit("cpu", {"ms": 0}, **each) for each in when))
    records = [record for record in await rig.store.read(ids) if record is not None]
    return {each.id: max(each.spec.run_at_ms, each.created_ms + each.spec.delay_ms) for each in records}


async def ended(rig: Rig, ids: list[str]) -> list[TaskRecord]:
    async def records() -> list[TaskRecord]:
        return [record for record in await rig.store.read(ids) if record is not None and record.finished_ms]

    return await eventually(records, lambda found: len(found) == len(ids), within_s=60)


async def lateness_ms(rig: Rig, due: dict[str, int]) -> list[float]:
    """How long after its time each handler started, once all have ended; each ran once, in its first attempt."""

    await ended(rig, list(due))
    runs = rig.runs()
    assert sorted(run.task_id for run in runs) == sorted(due), "each once"
    assert {run.attempt for run in runs} == {1}
    return sorted(wall_ms(run.start) - due[run.task_id] for run in runs)


async def test_what_is_to_start_later_starts_on_time(rig: Rig) -> None:
    await rig.worker()
    await rig.gateway()
    late = await lateness_ms(rig, await submit_later(rig, [2 + n / 50 for n in range(200)]))
    assert late[0] > -2, "never before its time; run_at has microseconds, Redis' clock milliseconds"
    assert_on_time("starts of delayed tasks, idle", late)


async def test_what_has_not_started_by_its_deadline_expires_on_time(rig: Rig) -> None:
    """While all slots are taken, and while it waits for its own start time."""
    await rig.worker(TASKGATE_WORKER_PROCESSES="1", TASKGATE_ASYNC_PROCESSES="0", TASKGATE_GRACE_S="1")
    await rig.gateway()
    await rig.running(await rig.submit("sleeper", {"ms": 60_000}))
    never = [{"deadline_s": 1 + n / 50} for n in range(100)]
    never += [{"deadline_s": 1 + n / 50, "delay_s": 60} for n in range(50)]
    ids = await asyncio.gather(*(rig.submit("cpu", {"ms": 0}, **each) for each in never))

    records = await ended(rig, ids)
    assert {record.status for record in records} == {Status.EXPIRED}
    late = [float(record.finished_ms - record.deadline_ms) for record in records]
    assert min(late) >= 0
    assert_on_time("ends at their deadline", late)
    assert not set(ids) & {run.task_id for run in rig.runs()}


@pytest.mark.timeout(180)
async def test_restarts_start_nothing_twice_nothing_early_and_nothing_never(rig: Rig) -> None:
    """Supervisor, gateway and Valkey are killed; some tasks are due meanwhile, the others after all are back."""
    rig.settings["TASKGATE_LEASE_S"] = "1"
    supervisor = await rig.worker()
    gateway = await rig.gateway()
    due = await submit_later(rig, [8 + n / 10 for n in range(70)])
    asked = (rig.submit("cpu", {"ms": 0}, delay_s=120, deadline_s=8 + n / 5) for n in range(35))
    never = await asyncio.gather(*asked)

    for process in (supervisor, gateway):
        process.kill()
        process.wait()
    rig.server.stop()
    await asyncio.to_thread(rig.server.start, *AOF)
    first = min(due.values()) / 1000
    await asyncio.sleep(max(0.0, first + 1 - time.time()))  # some are due while nobody is there
    await rig.worker()
    await rig.gateway()
    back_ms = time.time() * 1000 + 1000

    late = await lateness_ms(rig, due)
    assert late[0] > -2
    after = [wall_ms(run.start) - due[run.task_id] for run in rig.runs() if due[run.task_id] > back_ms]
    if len(after) >= 20:  # else the processes took so long to start that nothing can be said
        assert_on_time("starts after the restart", after)

    records = await ended(rig, never)
    assert {record.status for record in records} == {Status.EXPIRED}
    late = [float(each.finished_ms - each.deadline_ms) for each in records if each.deadline_ms > back_ms]
    if len(late) >= 10:
        assert_on_time("ends at their deadline after the restart", late)
    assert not set(never) & {run.task_id for run in rig.runs()}


@pytest.mark.timeout(120)
async def test_a_supervisor_killed_among_starts_leaves_none_out_and_runs_none_beside_itself(rig: Rig) -> None:
    """Two supervisors, of which one dies while tasks become due one by one; Redis' look at time is the only one."""
    rig.settings["TASKGATE_LEASE_S"] = "1"
    first = await rig.worker()
    await rig.worker()
    await rig.gateway()
    due = await submit_later(rig, [2 + n / 40 for n in range(80)])
    middle = sorted(due.values())[40] / 1000
    await asyncio.sleep(max(0.0, middle - time.time()))
    first.kill()
    first.wait()

    records = await ended(rig, list(due))
    assert {record.status for record in records} == {Status.SUCCEEDED}
    runs = rig.runs()
    assert {run.task_id for run in runs} == set(due)
    assert len(runs) == len({(run.task_id, run.attempt) for run in runs}), "no attempt twice"

"""Nothing that a task does keeps it alive: soft signal, grace, hard signal, with all that it has started."""

import asyncio
import contextlib
import functools
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskgate.contract.errors import NotCancelable
from tests.conftest import eventually
from tests.processes import parent_of, whole_lines
from tests.system.death_jobs import HANGS
from tests.system.death_rig import JOBS, accept, ended, error, events, read, sleepers, started, whole
from tests.system.rig import FINAL, Rig, is_dead
from workers.stops import KILL_AFTER_S

LONG = (pytest.mark.full, pytest.mark.timeout(400))
STUBBORN = ["hangs in C", "ignores signals", "swallows", "loops in finally"]
TIMEOUT_S = 3
"""The way into its hang a task must have made by then."""
TICK_NS = 20_000_000
"""/proc/uptime, by which shells stamp, counts hundredths."""


@pytest.fixture
def jobs(rig: Rig) -> Rig:
    rig.settings["TASKGATE_HANDLERS"] = JOBS
    return rig


@pytest.fixture
def naps() -> Iterator[list[str]]:
    """Seconds to sleep that nobody else sleeps; what sleeps so at the end is what a failed test leaves behind."""
    naps = [f"{each}" for each in random.sample(range(10**6, 10**7), len(HOWS) * 3)]
    yield naps
    for nap in naps:
        for pid in sleepers(f"sleep {nap}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("count", "children"), [(4, 4), pytest.param(100, 16, marks=LONG)])
async def test_after_tasks_that_hang_in_every_way_capacity_is_as_before(jobs: Rig, count: int, children: int) -> None:
    supervisor = await jobs.worker(TASKGATE_WORKER_PROCESSES=str(children))
    await whole(jobs, supervisor.pid, sync=children)
    ways = STUBBORN if count == 4 else list(HANGS)
    ids = [await accept(jobs, "hangs", ways[n % len(ways)], timeout_s=TIMEOUT_S) for n in range(count)]

    records = await ended(jobs, *ids, within_s=350)

    for n, record in enumerate(records):
        told = error(record)
        assert (record.status, record.attempt, told["kind"]) == ("failed", 1, "timeout"), ways[n % len(ways)]
        assert told["message"].startswith(f"ran longer than its timeout of {TIMEOUT_S} s"), told
        if ways[n % len(ways)] in STUBBORN:
            assert told["message"].endswith("and did not stop when asked")
            assert told["signal"] == "SIGKILL"
            assert record.finished_ms - record.started_ms > 1000 * (TIMEOUT_S + KILL_AFTER_S - 1)
            await _check_events(jobs, record.id)
    await whole(jobs, supervisor.pid, sync=children)
    together = [await accept(jobs, "beats", {"ms": 60_000}) for _ in range(children)]
    await started(jobs, *together)
    for task_id in together:
        await jobs.store.cancel(task_id)
    await ended(jobs, *together)


async def _check_events(jobs: Rig, task_id: str) -> None:
    """Both signals, and then the end."""
    told = await events(jobs, task_id)
    assert [name for name, _ in told] == ["status", "stopping", "killed", "status"]
    assert told[1][1] == {"signal": "SIGUSR1", "reason": "timeout", "grace_s": KILL_AFTER_S}
    assert told[2][1] == {"signal": "SIGKILL", "reason": "timeout"}
    at_ms = [int(event.id.split("-")[0]) for event in await jobs.store.events(task_id)]
    assert at_ms[2] - at_ms[1] < 1000 * (KILL_AFTER_S + 20)


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=LONG)])
async def test_cancels_at_random_moments_leak_no_slot_and_are_told_when_it_has_happened(jobs: Rig, count: int) -> None:
    supervisor = await jobs.worker(TASKGATE_WORKER_PROCESSES="4")
    await whole(jobs, supervisor.pid, sync=4)
    seen: dict[str, tuple[str, int]] = {}
    dice = random.Random(count)

    beats = Path(f"{jobs.stamps}.beats")
    beats.touch()

    async def stamped() -> str:
        return beats.read_text()

    async def user(number: int) -> None:
        for n in range(number, count, 8):
            task_type = ("beats", "beats", "async.beats", "shell_beats")[n % 4]
            surely = n % 4 == 0
            task_id = await accept(jobs, task_type, {"ms": 60_000 if surely else 300, "swallow": n % 100 == 1})
            if surely:
                await eventually(stamped, lambda said, task_id=task_id: task_id in said, within_s=60, every_s=0.05)  # type: ignore[misc]
            await asyncio.sleep(dice.choice([0.0, dice.uniform(0, 0.02), dice.uniform(0, 0.3)]))
            try:
                await jobs.store.cancel(task_id)
            except NotCancelable:
                pass
            record = await eventually(
                lambda task_id=task_id: read(jobs, task_id),  # type: ignore[misc]
                lambda record: record.status in FINAL,
                within_s=120,
                every_s=0.003,
            )
            seen[task_id] = str(record.status), time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    await asyncio.gather(*(user(number) for number in range(8)))

    assert len(seen) == count
    assert {status for status, _ in seen.values()} <= {"canceled", "succeeded"}
    last: dict[str, int] = defaultdict(int)
    for line in whole_lines(beats):
        task_id, at = line.split()
        last[task_id] = max(last[task_id], int(at))
    canceled = {task_id: at_ns for task_id, (status, at_ns) in seen.items() if status == "canceled"}
    assert len(canceled.keys() & last.keys()) > count / 10, "too few were canceled while they ran"
    assert [task_id for task_id, at_ns in canceled.items() if last[task_id] > at_ns + TICK_NS] == []
    await whole(jobs, supervisor.pid, sync=4)
    usage = await jobs.store.usage(0)
    assert not [name for name, value in usage.items() if name.startswith(("running:", "waiting:", "bytes:")) and value]


HOWS = ["shell", "own session", "daemon", "clean environment"]


@pytest.mark.parametrize(
    "thens", [["sleep"], pytest.param(["sleep", "swallow", "crash"], marks=LONG)], ids=["few", "all"]
)
async def test_what_a_task_has_started_ends_with_it(jobs: Rig, naps: list[str], thens: list[str]) -> None:
    """Canceled, killed after its timeout, or dead by itself. Without our mark, it must end softly to be found."""
    supervisor = await jobs.worker(TASKGATE_WORKER_PROCESSES="4")
    cases = [(how, then) for how in HOWS for then in thens if how != "clean environment" or then == "sleep"]
    asleep = dict(zip(naps, cases, strict=False))
    ids = {}
    for nap, (how, then) in asleep.items():
        payload = {"s": nap, "how": how, "then": then}
        ids[nap] = await accept(jobs, "starts", payload, timeout_s=2 if then == "swallow" else 3600)
    for nap, (_, then) in asleep.items():
        if then == "sleep":
            await started(jobs, ids[nap])
            await eventually(functools.partial(_sleeping, nap), bool)
            await jobs.store.cancel(ids[nap])
    records = await ended(jobs, *ids.values())

    for (how, then), record in zip(asleep.values(), records, strict=True):
        assert record.status == ("canceled" if then == "sleep" else "failed"), (how, then)
    for nap, case in asleep.items():
        await eventually(functools.partial(_sleeping, nap), lambda pids, case=case: pids == [], within_s=60)  # type: ignore[misc]
    await whole(jobs, supervisor.pid, sync=4)


async def _sleeping(nap: str) -> list[int]:
    return [pid for pid in sleepers(f"sleep {nap}") if not is_dead(pid)]


@pytest.mark.full
async def test_a_stopped_supervisor_leaves_nothing_that_its_tasks_have_started(jobs: Rig, naps: list[str]) -> None:
    supervisor = await jobs.worker(TASKGATE_WORKER_PROCESSES="2", TASKGATE_GRACE_S="4")
    del naps[2:]
    ids = []
    for nap, then in zip(naps, ("sleep", "swallow"), strict=True):
        ids.append(await accept(jobs, "starts", {"s": nap, "how": "daemon", "then": then}))
    await started(jobs, *ids)
    supervisor.send_signal(signal.SIGTERM)

    assert await asyncio.to_thread(supervisor.wait, 60) == 0
    for nap in naps:
        await eventually(functools.partial(_sleeping, nap), lambda pids: pids == [], within_s=60)
    for task_id in ids:
        record = await read(jobs, task_id)
        assert (record.status, record.attempt) == ("queued", 0)
    assert ("killed", {"signal": "SIGKILL", "reason": "drain"}) in await events(jobs, ids[1])


@pytest.mark.full
async def test_what_is_no_childs_is_left_alone(jobs: Rig, naps: list[str]) -> None:
    """What the supervisor adopts and no task has started, as in a container whose first process it is."""
    supervisor = await jobs.worker()
    nap = naps[0]
    task_id = await accept(jobs, "starts", {"s": nap, "how": "clean environment", "then": "crash"})
    await ended(jobs, task_id)
    [pid] = await eventually(lambda: _sleeping(nap), bool)

    await eventually(lambda: _parent(pid), lambda parent: parent == supervisor.pid)
    [record] = await ended(jobs, await accept(jobs, "death", "exit code"))
    assert record.status == "failed"
    assert not is_dead(pid)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: _gone(pid), bool, within_s=60)


async def _parent(pid: int) -> int:
    return parent_of(pid)


async def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()

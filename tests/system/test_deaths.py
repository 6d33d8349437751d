"""The death of a child is an event: told with its cause at once, charged to the guilty, felt by nobody else."""

import asyncio
import signal
import statistics
import sys
import time
from typing import Any

import pytest

from taskgate.contract.models import TaskRecord
from tests.conftest import dead_letters, eventually
from tests.system.death_jobs import MIB
from tests.system.death_rig import JOBS, accept, ended, error, events, read, started, whole
from tests.system.rig import Rig, until_dead

LONG = (pytest.mark.full, pytest.mark.timeout(400))

CAUSES: dict[str, tuple[str, str, Any]] = {
    "exit code": ("crash", "exit_code", 7),
    "segfault": ("crash", "signal", "SIGSEGV"),
    "MemoryError": ("memory", "type", "MemoryError"),
    "SIGKILL": ("crash", "signal", "SIGKILL"),
    "sys.exit": ("exception", "type", "SystemExit"),
    "exit 0": ("crash", "exit_code", 0),
    "abort": ("crash", "signal", "SIGABRT"),
    "SIGTERM": ("crash", "signal", "SIGTERM"),
    "real-time signal": ("crash", "signal", "signal 37"),
    # Later Pythons count the frames of C too.
    "recursion in C": ("crash", "signal", "SIGSEGV")
    if sys.version_info < (3, 12)
    else ("exception", "type", "RecursionError"),
    "garbage": ("crash", "signal", "SIGKILL"),
    "recursion": ("exception", "type", "RecursionError"),
}
FEW = ["exit code", "segfault", "MemoryError"]


@pytest.fixture
def jobs(rig: Rig) -> Rig:
    rig.settings["TASKGATE_HANDLERS"] = JOBS
    return rig


@pytest.mark.parametrize("kinds", [FEW, pytest.param(list(CAUSES), marks=LONG)], ids=["few", "all"])
async def test_every_death_is_told_with_its_cause_and_ends_as_a_dead_letter(jobs: Rig, kinds: list[str]) -> None:
    supervisor = await jobs.worker()
    bystanders = [await accept(jobs, "async.neighbour", {"until": str(jobs.folder / "go")}) for _ in range(3)]
    ids = {kind: await accept(jobs, "death", kind, max_attempts=2) for kind in kinds}
    # Its payload's own validator ends the process: what dies before its handler starts counts, once received.
    early = await accept(jobs, "dies_early", {"value": 1}, max_attempts=2)

    records = dict(zip(ids, await ended(jobs, *ids.values(), within_s=200), strict=True))
    (jobs.folder / "go").touch()

    for kind, record in records.items():
        told, (wanted, field, value) = error(record), CAUSES[kind]
        assert (record.status, record.attempt) == ("failed", 2), kind
        assert (told["kind"], told[field]) == (wanted, value), kind
        if wanted != "exception":
            assert 200 * MIB < told["rss_peak_bytes"] < 400 * MIB, kind
        retried = [data for name, data in await events(jobs, record.id) if data.get("status") == "retrying"]
        assert [data["error"]["kind"] for data in retried] == [wanted], "the first attempt counts, and is told"
    [record] = await ended(jobs, early)
    assert (record.status, record.attempt, error(record)["exit_code"]) == ("failed", 2, 11)
    assert set(await dead_letters(jobs.store)) == {early, *ids.values()}
    if "segfault" in records:
        assert "in death" in error(records["segfault"])["stack"]
    for record in await ended(jobs, *bystanders):
        assert (record.status, record.attempt) == ("succeeded", 1)
    await whole(jobs, supervisor.pid, sync=2)


@pytest.mark.full
async def test_a_death_is_visible_within_100_ms(jobs: Rig) -> None:
    """The handler stamps the time right before; 5 × slack, for the median: a busy machine has its moments."""
    await jobs.worker()
    seen_ms = []
    for _ in range(10):
        task_id = await accept(jobs, "death", "exit code")
        record = await eventually(lambda task_id=task_id: read(jobs, task_id), _has_error, within_s=30, every_s=0.005)  # type: ignore[misc]
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        [run] = [run for run in jobs.runs() if run.task_id == record.id]
        seen_ms.append((now_ns - run.start) / 1e6)
    print(f"death -> visible, ms: median {statistics.median(seen_ms):.0f}, most {max(seen_ms):.0f}")
    assert statistics.median(seen_ms) < 5 * 100


def _has_error(record: TaskRecord) -> bool:
    return bool(record.error)


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_of_100_async_tasks_one_segfaults_one_blocks_and_the_others_run_once_more(jobs: Rig) -> None:
    supervisor = await jobs.worker(TASKGATE_WORKER_PROCESSES="1")
    neighbours = [await accept(jobs, "async.neighbour", {"until": str(jobs.folder / "go")}) for _ in range(98)]
    await started(jobs, *neighbours)
    poison = await accept(jobs, "async.death", "segfault", max_attempts=2)
    [dead] = await ended(jobs, poison)
    assert (dead.status, dead.attempt, error(dead)["signal"]) == ("failed", 2, "SIGSEGV")

    await whole_async(jobs)
    blocker = await accept(jobs, "async.blocks", {}, timeout_s=1)
    [dead] = await ended(jobs, blocker)
    assert (dead.status, dead.attempt, error(dead)["kind"]) == ("failed", 1, "timeout")

    (jobs.folder / "go").touch()
    records = await ended(jobs, *neighbours, within_s=150)
    assert {(record.status, record.attempt) for record in records} == {("succeeded", 1)}
    runs = [sum(run.task_id == task_id for run in jobs.runs()) for task_id in neighbours]
    assert max(runs) <= 4, "one run, and one more for each of three deaths"
    await whole(jobs, supervisor.pid, sync=1)


async def whole_async(jobs: Rig) -> None:
    """Once 98 tasks run again beside each other."""
    await eventually(jobs.children, lambda found: any(len(child["tasks"]) == 98 for child in found), within_s=60)


@pytest.mark.full
@pytest.mark.parametrize("reason", ["timeout", "cancel"])
async def test_who_blocks_the_loop_pays_for_those_who_could_not_be_asked_to_stop(jobs: Rig, reason: str) -> None:
    """The blocker has an hour; its neighbour's time is over, or somebody cancels it."""
    await jobs.worker(TASKGATE_WORKER_PROCESSES="1")
    payload = {"until": str(jobs.folder / "go")}
    waits = await accept(jobs, "async.neighbour", payload, timeout_s=10 if reason == "timeout" else 3600)
    await started(jobs, waits)
    blocker = await accept(jobs, "async.blocks", {})
    await started(jobs, blocker)
    if reason == "cancel":
        await jobs.store.cancel(waits)

    [dead] = await ended(jobs, blocker)
    (jobs.folder / "go").touch()
    [record] = await ended(jobs, waits)

    assert (dead.status, error(dead)["kind"]) == ("failed", "timeout")
    assert "blocked the event loop" in error(dead)["message"]
    assert (record.status, record.attempt) == ("succeeded" if reason == "timeout" else "canceled", 1)


@pytest.mark.full
async def test_who_blocks_the_loop_unseen_is_found_by_running_alone(jobs: Rig) -> None:
    """From a callback: nobody is noted while the loop stands still."""
    await jobs.worker(TASKGATE_WORKER_PROCESSES="1")
    neighbour = await accept(jobs, "async.neighbour", {"until": str(jobs.folder / "go")}, timeout_s=60)
    await started(jobs, neighbour)
    (jobs.folder / "go").touch()
    blocker = await accept(jobs, "async.blocks", {"unseen": True}, timeout_s=1)

    [dead] = await ended(jobs, blocker)
    [record] = await ended(jobs, neighbour)

    assert (dead.status, dead.attempt, error(dead)["kind"]) == ("failed", 1, "timeout")
    assert (record.status, record.attempt) == ("succeeded", 1)


@pytest.mark.full
async def test_who_swallows_its_stop_is_charged_and_not_the_busy_one_beside_it(jobs: Rig) -> None:
    await jobs.worker(TASKGATE_WORKER_PROCESSES="1")
    busy = await accept(jobs, "async.busy", {"until": str(jobs.folder / "go")})
    stubborn = await accept(jobs, "async.swallows", timeout_s=1)

    [dead] = await ended(jobs, stubborn)
    (jobs.folder / "go").touch()
    [record] = await ended(jobs, busy)

    assert (dead.status, error(dead)["kind"]) == ("failed", "timeout")
    assert (record.status, record.attempt) == ("succeeded", 1)


@pytest.mark.parametrize(
    ("count", "way"), [(4, "unseen"), pytest.param(40, "unseen", marks=LONG), pytest.param(4, "garbage", marks=LONG)]
)
async def test_where_nobody_is_noted_each_runs_its_next_attempt_alone_and_poison_ends(
    jobs: Rig, count: int, way: str
) -> None:
    """The death comes from a callback; or the child sent garbage, and who is noted when that is read proves nothing."""
    await jobs.worker(TASKGATE_WORKER_PROCESSES="1")
    go = str(jobs.folder / "go")
    neighbours = [await accept(jobs, "async.neighbour", {"until": go}) for _ in range(count - 1)]
    [shared] = set(await started(jobs, *neighbours))
    task_type, payload = ("async.dies_unseen", {}) if way == "unseen" else ("async.death", "garbage")
    poison = await accept(jobs, task_type, payload, max_attempts=2)
    await started(jobs, poison)
    await until_dead(shared, within_s=60)
    (jobs.folder / "go").touch()

    [dead, *records] = await ended(jobs, poison, *neighbours, within_s=100)

    assert (dead.status, dead.attempt) == ("failed", 2)
    assert error(dead)["signal"] == ("SIGSEGV" if way == "unseen" else "SIGKILL")
    assert {(record.status, record.attempt) for record in records} == {("succeeded", 1)}
    assert ("status", {"status": "queued", "attempt": 0, "reason": "suspect"}) in await events(jobs, neighbours[0])
    again = {run.task_id for run in jobs.runs() if run.task_id in neighbours and run.pid != shared}
    assert again == set(neighbours)


@pytest.mark.full
async def test_who_is_paused_too_long_is_killed_for_the_lease_and_runs_again_at_once(jobs: Rig) -> None:
    """Redis stands still for longer than lease and pause; the guard kills, and the backoff of an hour is not taken."""
    supervisor = await jobs.worker(TASKGATE_LEASE_S="1", TASKGATE_PAUSE_S="1")
    task_id = await accept(jobs, "waits_long", {"ms": 60_000}, max_attempts=3)
    [pid] = await started(jobs, task_id)
    assert jobs.server.process is not None
    jobs.server.process.send_signal(signal.SIGSTOP)
    try:
        await until_dead(pid, within_s=30)
    finally:
        jobs.server.process.send_signal(signal.SIGCONT)

    [record] = await ended(jobs, task_id)
    assert (record.status, record.attempt) == ("succeeded", 2)
    told = [data for name, data in await events(jobs, task_id) if data.get("error")]
    assert [(data["status"], data["error"]["kind"], data["error"]["signal"]) for data in told] == [
        ("queued", "lease", "SIGKILL")
    ]
    assert supervisor.poll() is None


@pytest.mark.full
async def test_a_real_shortage_of_memory_is_told_as_such(jobs: Rig, memory_group: str) -> None:
    """The kernel kills the child, and nothing else, in a control group of 400 MiB."""
    supervisor = jobs.spawn("worker")
    (jobs.folder / "group").symlink_to(memory_group)
    with open(f"{memory_group}/cgroup.procs", "w") as group:  # noqa: PTH123
        group.write(str(supervisor.pid))
    await eventually(jobs.store.workers, lambda found: any(w.types for w in found), within_s=30)

    [record] = await ended(jobs, await accept(jobs, "fills_memory"))

    told = error(record)
    assert (told["kind"], told["signal"]) == ("memory", "SIGKILL")
    assert "out of memory" in told["message"]
    assert told["rss_peak_bytes"] > 200 * MIB
    [record] = await ended(jobs, await accept(jobs, "echo", 1))
    assert record.status == "succeeded"
    assert supervisor.poll() is None
    jobs.processes.remove(supervisor)
    supervisor.terminate()
    await asyncio.to_thread(supervisor.wait)


@pytest.mark.full
async def test_cancel_works_in_every_state(jobs: Rig) -> None:
    await jobs.worker(TASKGATE_WORKER_PROCESSES="1")
    running = await accept(jobs, "beats", {"ms": 60_000})
    await started(jobs, running)
    queued = await accept(jobs, "beats", {"ms": 60_000})
    retrying = await accept(jobs, "async.retries", max_attempts=5)
    await eventually(lambda: read(jobs, retrying), lambda record: record.status == "retrying", within_s=20)

    assert await jobs.store.cancel(queued) == "canceled"
    assert await jobs.store.cancel(retrying) == "canceled"
    assert await jobs.store.cancel(running) == "canceling"
    assert await jobs.store.cancel(running) in ("canceling", "canceled")
    [record] = await ended(jobs, running)
    assert record.status == "canceled"
    assert await jobs.store.cancel(running) == "canceled"
    names = [name for name, _ in await events(jobs, running)]
    assert names == ["status", "status", "stopping", "status"]

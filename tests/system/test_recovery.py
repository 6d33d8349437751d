"""Workers die and freeze; every accepted task ends once, and no two of its runs overlap."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest

from tests.conftest import eventually
from tests.system.rig import FINAL, Rig, command_of, descendants, is_dead, overlaps, task_children, until_dead

pytestmark = pytest.mark.timeout(300)

SUCCEED = {"cpu", "wait", "progress", "sleeper"}
LONG = (pytest.mark.full, pytest.mark.timeout(400))


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def mixture(count: int) -> list[tuple[str, dict[str, int]]]:
    """40 % CPU of 50 to 300 ms, 20 % async waits, 20 % raise or Retry, 10 % os._exit, 10 % progress at full rate."""
    jobs: list[tuple[str, dict[str, int]]] = []
    for n in range(count):
        share = n % 10
        if share < 4:
            jobs.append(("cpu", {"ms": random.randint(50, 300)}))
        elif share < 6:
            jobs.append(("wait", {"ms": random.randint(50, 500)}))
        elif share < 8:
            jobs.append(("raises", {"n": n // 10}))
        elif share < 9:
            jobs.append(("exits", {"n": n}))
        else:
            jobs.append(("progress", {"steps": 20_000}))
    random.shuffle(jobs)
    return jobs


async def submit_all(rig: Rig, jobs: list[tuple[str, dict[str, int]]]) -> dict[str, str]:
    """Every accepted id, with its type."""
    return {await rig.submit(task_type, payload): task_type for task_type, payload in jobs}


async def all_ended(rig: Rig, ids: dict[str, str], *, within_s: float) -> list[Any]:
    async def unfinished() -> int:
        return sum(record is None or record.status not in FINAL for record in await rig.store.read(list(ids)))

    await eventually(unfinished, lambda left: left == 0, within_s=within_s, every_s=0.2)
    return await rig.store.read(list(ids))


class Killer:
    """SIGKILLs a random child that works, once per period, until stopped."""

    def __init__(self, rig: Rig, pids: Any, *, every_s: float) -> None:
        self.killed: dict[int, int] = {}
        self._rig = rig
        self._pids = pids
        self._every_s = every_s
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            if victims := self._pids():
                pid = random.choice(victims)
                # Not when this process noticed the death: by then its supervisor may have started the next attempt.
                at = boot_ns()
                with contextlib.suppress(ProcessLookupError):  # it may have ended by itself since it was looked for
                    os.kill(pid, signal.SIGKILL)
                    self.killed[pid] = at
                await until_dead(pid)


def hits(rig: Rig, killed: dict[int, int]) -> int:
    """Kills that struck between a handler's start and its end record."""
    return len({run.pid for run in rig.runs() if run.end is None and run.pid in killed})


def check(records: list[Any], ids: dict[str, str]) -> None:
    ends = Counter((ids[record.id], str(record.status)) for record in records)
    kinds = {name for name, _ in ends}
    for name in kinds & SUCCEED:
        assert ends[name, "succeeded"] == sum(n for (each, _), n in ends.items() if each == name), ends
    for name in kinds & {"raises", "exits"}:
        assert ends[name, "failed"] == sum(n for (each, _), n in ends.items() if each == name), ends


async def _whole(rig: Rig, supervisor: int) -> bool:
    """The pool as it started: children idle, none missing, none doubled."""
    children = await rig.children()
    return len(children) == 4 == len(task_children(supervisor)) and all(c["state"] == "idle" for c in children)


@pytest.mark.parametrize(("count", "kills"), [(40, 2), pytest.param(1000, 20, marks=LONG)])
async def test_every_task_ends_once_while_children_are_killed(rig: Rig, count: int, kills: int) -> None:
    """The pool is 2 sync children and a spare, and one async child."""
    supervisor = await rig.worker()
    await rig.gateway()
    await eventually(lambda: _whole(rig, supervisor.pid), bool, within_s=60)
    killer = Killer(rig, lambda: at_work(rig, supervisor.pid), every_s=1.0 if count == 1000 else 0.5)
    ids = await submit_all(rig, mixture(count))
    records = await all_ended(rig, ids, within_s=250)
    while hits(rig, killer.killed) < kills:  # how many strike while the first ones run is the machine's speed
        ids |= await submit_all(rig, mixture(20))
        records = await all_ended(rig, ids, within_s=60)
    await killer.stop()

    check(records, ids)
    assert overlaps(rig.runs(), killer.killed) == []
    await eventually(lambda: _whole(rig, supervisor.pid), bool, within_s=60)


@pytest.mark.parametrize(("count", "kills"), [(30, 2), pytest.param(1000, 20, marks=LONG)])
async def test_a_killed_supervisor_takes_its_children_with_it_and_loses_nothing(
    rig: Rig, count: int, kills: int
) -> None:
    """Two supervisors, one of them killed and replaced again and again."""
    rig.settings["TASKGATE_LEASE_S"] = "1" if kills < 10 else "2"
    stays = await rig.worker()
    await rig.gateway()
    victim = await rig.worker()
    ids = await submit_all(rig, mixture(count))
    killed: dict[int, int] = {}
    rounds = 0
    while rounds < kills or hits(rig, killed) < kills // 2:  # a run may end just before the kill
        rounds += 1
        # Enough for both: a machine on which a start takes long has done everything else by now. And again: a victim
        # that is slow to ask may find that the other one has done them all.
        ids |= await submit_all(rig, [("sleeper", {"ms": 1500})] * 4)
        while not await _comes_to_work(rig, victim.pid, within_s=5):
            ids |= await submit_all(rig, [("sleeper", {"ms": 1500})] * 4)
        children = task_children(victim.pid)
        victim.kill()
        victim.wait()
        killed |= await _last_seen_alive(children)
        victim = await rig.worker()
    records = await all_ended(rig, ids, within_s=250)

    assert {record.status for record in records} <= {"succeeded", "failed"}
    assert all(record.status == "succeeded" for record in records if ids[record.id] in SUCCEED)
    assert overlaps(rig.runs(), killed) == []
    await eventually(rig.store.workers, lambda found: {w.pid for w in found} == {stays.pid, victim.pid}, within_s=60)


def at_work(rig: Rig, supervisor: int) -> list[int]:
    """Those of its children that run a handler now, in one of its task's first attempts: later ones are rare."""
    children = set(task_children(supervisor))
    return list({run.pid for run in rig.runs() if run.end is None and run.attempt <= 3 and run.pid in children})


async def _comes_to_work(rig: Rig, supervisor: int, *, within_s: float) -> bool:
    """Once one of its children runs a handler, or after so long."""
    deadline = time.monotonic() + within_s
    while not (works := at_work(rig, supervisor)) and time.monotonic() < deadline:  # noqa: ASYNC110 - in other processes
        await asyncio.sleep(0.02)
    return bool(works)


async def _last_seen_alive(pids: list[int]) -> dict[int, int]:
    """Once all are dead; when each lived for certain: this process may see a death so late that others run by then."""
    seen = dict.fromkeys(pids, 0)

    async def alive() -> list[int]:
        now = boot_ns()
        living = [pid for pid in pids if not is_dead(pid)]
        seen.update(dict.fromkeys(living, now))
        return living

    await eventually(alive, lambda living: not living, within_s=60, every_s=0.001)
    return seen


@pytest.mark.full
async def test_a_frozen_supervisors_child_stops_before_the_task_runs_elsewhere(rig: Rig) -> None:
    rig.settings["TASKGATE_LEASE_S"] = "1"
    frozen = await rig.worker()
    await rig.gateway()
    task_id = await rig.submit("sleeper", {"ms": 5000})
    await rig.running(task_id)
    await eventually(lambda: _runs(rig, task_id), len)
    os.kill(frozen.pid, signal.SIGSTOP)
    [child] = [run.pid for run in rig.runs() if run.task_id == task_id]
    await rig.worker()

    second = await eventually(lambda: _runs(rig, task_id), lambda runs: len(runs) == 2, within_s=60)
    assert is_dead(child, or_stopped=True)
    assert {run.attempt for run in second} == {1, 2}
    ended = await rig.ended(task_id)
    assert (ended["status"], ended["attempt"]) == ("succeeded", 2)
    os.kill(frozen.pid, signal.SIGCONT)
    await until_dead(child)
    assert [run.end for run in await _runs(rig, task_id) if run.attempt == 1] == [None]
    stale = await eventually(lambda: _stale_writes(rig, frozen.pid), bool)
    assert stale >= 1


async def _runs(rig: Rig, task_id: str) -> list[Any]:
    return [run for run in rig.runs() if run.task_id == task_id]


async def _stale_writes(rig: Rig, pid: int) -> int:
    return sum(worker.stale_writes for worker in await rig.store.workers() if worker.pid == pid)


async def test_a_call_that_holds_the_gil_past_the_lease_runs_once_and_is_seen_computing(rig: Rig) -> None:
    rig.settings["TASKGATE_LEASE_S"] = "1"
    await rig.worker()
    await rig.gateway()
    begun = time.process_time()  # CPU time: the wall clock of a loaded machine would make the call too short
    sum(range(20_000_000))
    iterations = int(20_000_000 * 6 / (time.process_time() - begun))  # 6 s: its CPU may be faster than ours
    task_id = await rig.submit("hog", {"iterations": iterations})
    await rig.running(task_id)
    seen: list[tuple[int, dict[str, Any]]] = []

    async def look() -> dict[str, Any]:
        seen.append((boot_ns(), await rig.task(task_id)))
        return seen[-1][1]

    ended = await eventually(look, lambda task: task["status"] in FINAL, within_s=60, every_s=0.2)
    assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
    silent_ms = (await rig.http.get(f"/tasks/{task_id}/result")).json()
    assert silent_ms >= 4000, "another thread of the child went on"
    [run] = await _runs(rig, task_id)
    assert run.end is not None
    # So late that a beat of before the call is no fresh one.
    during = [task for at, task in seen if run.start + 1_500_000_000 < at < run.end and task["status"] == "running"]
    fresh = [task for task in during if task["heartbeat_age_ms"] is not None and task["heartbeat_age_ms"] < 1000]
    assert fresh, "a busy machine misses some beats, a held GIL would all"
    verdicts = {task["health"] for task in fresh} - {None}
    assert verdicts
    assert verdicts <= {"computing", "starved"}  # on a loaded machine it is starved at times, which is true then
    assert "computing" in verdicts or ended["effort"]["cpu_wait_ms"] > ended["effort"]["cpu_ms"], ended["effort"]


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.full)])
async def test_the_202s_survive_a_killed_valkey(rig: Rig, count: int) -> None:
    await rig.worker(TASKGATE_WORKER_PROCESSES="1", TASKGATE_QUEUES="elsewhere")
    await rig.gateway()
    answers = await asyncio.gather(*(rig.submit("cpu", {"ms": 1}) for _ in range(count)))
    rig.server.stop(signal.SIGKILL)
    rig.server.start("--appendonly", "yes", "--appendfsync", "always")

    await rig.redis.connection_pool.disconnect()
    records = await rig.store.read(answers)
    assert all(record is not None and record.status == "queued" for record in records)


async def test_no_supervisor_process_is_left_behind(rig: Rig) -> None:
    worker = await rig.worker()
    family = task_children(worker.pid)
    guards = [pid for pid in descendants(worker.pid) if "workers/guard.py" in command_of(pid)]
    assert len(guards) == 1
    worker.kill()
    worker.wait()
    for pid in [*family, *guards]:
        await until_dead(pid, within_s=30)


@pytest.mark.full
async def test_children_that_did_not_run_for_a_while_are_given_work_again(rig: Rig) -> None:
    """What they had not read was taken back, so nothing of theirs is left that could end."""
    supervisor = await rig.worker()
    await rig.gateway()
    for task_id in [
        await rig.submit("fails", {}) for _ in range(100)
    ]:  # the quickest there is: known as fit for pipelines
        assert (await rig.ended(task_id))["status"] == "failed"

    children = task_children(supervisor.pid)
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    tasks = [await rig.submit("fails", {}) for _ in range(50)]
    # More often than there are tasks: all that was handed over, and then something again.
    await eventually(lambda: _taken_back(rig, tasks), lambda times: times > len(tasks), within_s=60)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):  # one that stood still for too long is replaced
            os.kill(pid, signal.SIGCONT)

    for task_id in tasks:
        ended = await rig.ended(task_id, within_s=60)
        assert (ended["status"], ended["attempt"]) == ("failed", 1)


async def _taken_back(rig: Rig, tasks: list[str]) -> int:
    """How often."""
    told = [event.data for task_id in tasks for event in await rig.store.events(task_id)]
    return sum(b'"taken_back"' in each for each in told)

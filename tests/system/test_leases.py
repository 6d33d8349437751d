"""A supervisor freezes and another takes over: never two attempts at once, and no write of the first after that."""

import asyncio
import contextlib
import os
import signal
from typing import Any

import msgspec
import pytest

from tests.conftest import eventually
from tests.system.rig import FINAL, Rig, descendants, is_dead, until_dead
from tests.system.ticking import Ticking, boot_s, freeze, guard_of, thaw

LEASE_S = 1.2
LONG = (pytest.mark.full, pytest.mark.timeout(500))
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def ticking(rig: Rig) -> Ticking:
    return Ticking(rig, lease_s=LEASE_S)


class Pair:
    """Two supervisors with a queue of their own, of which the one that has the task is frozen."""

    def __init__(self, ticking: Ticking, queue: str) -> None:
        self._ticking = ticking
        self._queue = queue
        self._pids: list[int] = []

    async def start(self) -> None:
        for _ in range(2):
            settings = {"QUEUES": self._queue, "WORKER_PROCESSES": "1", "ASYNC_PROCESSES": "0"}
            worker = await self._ticking.rig.worker(**{f"TASKGATE_{name}": value for name, value in settings.items()})
            self._pids.append(worker.pid)

    async def round(self, *, guarded: bool) -> int:
        """Freeze one, let the other take over, and thaw it; the overlap in ns."""
        await self._ticking.until_whole(*self._pids)
        payload = {"ms": 60_000, "then_ms": 100}
        task_id, first, supervisor = await self._ticking.held("ticks", payload, queue=self._queue)
        freeze(supervisor)
        if not guarded:
            os.kill(guard_of(supervisor), signal.SIGKILL)
        assert await self._ticking.ended(task_id) == "succeeded"
        thaw(supervisor)
        await until_dead(first.pid, within_s=30)
        assert len({ran.pid for ran in self._ticking.attempts(task_id)}) >= 2
        return self._ticking.overlap_ns(task_id)


async def overlaps_of(ticking: Ticking, *, rounds: int, pairs: int, guarded: bool) -> list[int]:
    """What each round shows in ms; pairs work side by side."""
    couples = [Pair(ticking, f"pair{n}") for n in range(pairs)]
    for couple in couples:
        await couple.start()
    await ticking.rig.gateway()
    left = iter(range(rounds))

    async def work(couple: Pair) -> list[int]:
        return [await couple.round(guarded=guarded) // 1_000_000 for _ in left]

    return [each for found in await asyncio.gather(*map(work, couples)) for each in found]


@pytest.mark.parametrize(("rounds", "pairs"), [(2, 1), pytest.param(100, 3, marks=LONG)])
async def test_a_takeover_from_a_frozen_supervisor_never_overlaps(ticking: Ticking, rounds: int, pairs: int) -> None:
    found = await overlaps_of(ticking, rounds=rounds, pairs=pairs, guarded=True)
    assert len(found) == rounds
    assert max(found) < 0, found


@pytest.mark.full
async def test_without_its_guard_a_frozen_supervisors_task_overlaps(ticking: Ticking) -> None:
    """That the test above is not blind."""
    found = await overlaps_of(ticking, rounds=20, pairs=2, guarded=False)
    assert sum(each >= 0 for each in found) > 10, found


async def test_with_its_guard_frozen_too_the_token_refuses_every_write_of_the_first_attempt(ticking: Ticking) -> None:
    """What the token alone cannot do: two handlers run at once. What it does: nothing of the first one is written."""
    rig = await _two_supervisors(ticking)
    task_id, first, frozen = await ticking.held("talks", {"ms": 60_000, "then_ms": 4000})
    guard = guard_of(frozen)
    freeze(frozen, guard)
    await ticking.started(task_id, attempt=2)
    await eventually(lambda: _overlap(ticking, task_id), lambda ns: ns > 0)

    thaw(guard)  # its deadline is over: it stops what should have stood still all the time

    async def stopped() -> bool:
        return is_dead(first.pid, or_stopped=True)

    await eventually(stopped, bool, within_s=20)
    thaw(frozen)
    await until_dead(first.pid, within_s=20)
    await eventually(lambda: _stale_writes(rig, frozen), bool, within_s=20)
    assert await ticking.ended(task_id) == "succeeded"
    last = max(ran.attempt for ran in ticking.attempts(task_id))  # 2, unless its supervisor was held up for a lease
    assert (await rig.http.get(f"/tasks/{task_id}/result")).json() == last
    said = [event for event in await rig.store.events(task_id) if event.name != "progress"]
    taken_over = next(n for n, event in enumerate(said) if _attempt(event) == 2)
    assert 1 not in {_attempt(event) for event in said[taken_over:]}
    assert (await rig.task(task_id))["progress"]["stage"] == f"attempt {last}"


@pytest.mark.full
async def test_an_end_that_comes_after_the_takeover_changes_nothing_and_is_counted(ticking: Ticking) -> None:
    """The child was done before the deadline, but its supervisor was frozen before it could say so."""
    ticking.rig.settings["TASKGATE_LEASE_S"] = "3"  # who takes over must not lose it again
    rig = await _two_supervisors(ticking)
    seen = rig.folder / "seen"
    task_id, frozen = await _frozen_in_time(ticking, then_until=str(seen))
    before = await rig.redis.hgetall(f"tg:{{0}}:task:{task_id}")
    assert before[b"attempt"] == b"2"

    thaw(frozen)

    await eventually(lambda: _stale_writes(rig, frozen), bool, within_s=20)
    after = await rig.redis.hgetall(f"tg:{{0}}:task:{task_id}")
    written = {name for name in after if before.get(name) != after[name]}
    assert written <= {b"version", b"reported", b"health", b"effort", b"progress"}, "the second attempt's reports alone"
    assert (after[b"status"], after[b"epoch"], after[b"worker"]) == (b"running", before[b"epoch"], before[b"worker"])
    seen.touch()
    assert await ticking.ended(task_id) == "succeeded"
    assert (await rig.http.get(f"/tasks/{task_id}/result")).json() == 2


async def _two_supervisors(ticking: Ticking) -> Rig:
    workers = [await ticking.rig.worker(TASKGATE_ASYNC_PROCESSES="0") for _ in range(2)]
    await ticking.rig.gateway()
    await ticking.until_whole(*(worker.pid for worker in workers))
    return ticking.rig


async def _frozen_in_time(ticking: Ticking, *, then_until: str) -> tuple[str, int]:
    """A task of which the supervisor was frozen before its end, and that supervisor; its second attempt runs."""
    for _ in range(20):
        task_id, _, frozen = await ticking.held("ticks", {"ms": 150, "then_ms": 0, "then_until": then_until})
        freeze(frozen)

        async def went_on(task_id: str = task_id) -> str:
            taken_over = any(ran.attempt == 2 for ran in ticking.attempts(task_id))
            return "taken over" if taken_over else await ticking.status(task_id)

        if await eventually(went_on, lambda how: how in ("taken over", *FINAL), within_s=60) == "taken over":
            return task_id, frozen
        thaw(frozen)
    pytest.fail("this machine is too slow to freeze anything in time")


async def _overlap(ticking: Ticking, task_id: str) -> int:
    return ticking.overlap_ns(task_id)


async def _stale_writes(rig: Rig, pid: int) -> int:
    """What `GET /workers` says of that supervisor."""
    shown = (await rig.http.get("/workers")).json()["items"]
    return sum(int(worker["stale_writes"]) for worker in shown if worker["pid"] == pid)


def _attempt(event: Any) -> int:
    data = msgspec.json.decode(event.data)
    return int(data["attempt"] if "attempt" in data else data["data"]["attempt"])


@pytest.mark.full
async def test_a_dead_machines_task_runs_again_about_a_lease_later(rig: Rig) -> None:
    """Supervisor, guard and children killed at once. The budget is the lease and 2 s; a busy machine gets 10."""
    lease_s = 1.0
    ticking = Ticking(rig, lease_s=lease_s)
    alive = [await rig.worker(TASKGATE_ASYNC_PROCESSES="0") for _ in range(2)]
    await rig.gateway()
    took_s = []
    for _ in range(5):
        await ticking.until_whole(*(worker.pid for worker in alive))
        task_id, _, holder = await ticking.held("ticks", {"ms": 60_000, "then_ms": 1})
        dead = next(worker for worker in alive if worker.pid == holder)
        machine = [dead.pid, *descendants(dead.pid)]
        died = boot_s()
        for pid in machine:
            with contextlib.suppress(ProcessLookupError):  # whose parent is dead dies by itself
                os.kill(pid, signal.SIGKILL)
        dead.wait()
        took_s.append((await ticking.started(task_id, attempt=2, within_s=60)).first / 1e9 - died)
        assert ticking.overlap_ns(task_id) < 0
        alive = [worker for worker in alive if worker is not dead] + [await rig.worker(TASKGATE_ASYNC_PROCESSES="0")]
    print(f"lease {lease_s:g} s, death to next attempt: {[round(each, 3) for each in sorted(took_s)]} s")
    assert max(took_s) < lease_s + 2 * 5, took_s

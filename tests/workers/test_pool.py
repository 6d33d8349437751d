"""The pool: a child that does not start, or does not exit, costs its slot for a while and never for good."""

import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.processes import open_files
from tests.workers.conftest import FOREVER_NS, JOBS, claimed, until
from workers import pool as pools
from workers.children import ChildProcess, ChildSpec
from workers.guard_client import GuardClient
from workers.orphans import children_of
from workers.pool import Pool
from workers.slot import boot_ns
from workers.wire import Kind

MakePool = Callable[..., Pool]


@pytest.fixture
async def pool() -> AsyncIterator[MakePool]:
    """Pools of one child, and its spare where it is sync."""
    guard = GuardClient(pause_s=30)
    await guard.start()
    made: list[Pool] = []

    def make(handlers: str = JOBS, *, kind: Kind = "sync", on_change: Callable[[], None] = lambda: None) -> Pool:
        pool = Pool(
            ChildSpec(kind=kind, handlers=(handlers,), slots=2),
            1,
            guard=guard,
            on_message=lambda child, message: None,
            on_exit=lambda child, how: None,
            on_change=on_change,
        )
        made.append(pool)
        pool.fill()
        return pool

    yield make
    for each in made:
        await each.stop()
    await guard.close()


async def idle(pool: Pool) -> ChildProcess:
    await until(pool.free)
    return next(pool.places(1))


async def both_can_work(pool: Pool) -> None:
    """They are ready, and the guard knows them."""
    await until(lambda: sum(map(pool._can_work, pool.children)) == 2)


async def test_a_child_that_cannot_exit_is_killed(pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a process that its task has left, at exit."""
    monkeypatch.setattr(pools, "EXIT_S", 0.3)
    its = pool()
    child = await idle(its)
    child.hand_over(claimed("leaves", ["joined process"]), deadline_ns=boot_ns() + FOREVER_NS, last=True)

    await until(lambda: child not in its.children)
    assert child.killed
    await until(its.free)


async def test_a_retiring_child_exits_also_when_it_refuses_its_last_task(
    pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "EXIT_S", 60.0)
    its = pool()
    child = await idle(its)
    child.hand_over(claimed("echo"), deadline_ns=0)
    its.retire(child)

    await until(lambda: child not in its.children)
    assert not child.killed


async def test_the_spare_serves_who_needs_a_fresh_process_when_all_others_have_worked(pool: MakePool) -> None:
    its = pool()
    await both_can_work(its)
    worked = await idle(its)
    its.used(worked)

    assert its.virgins() == 1
    assert worked not in list(its.places(2, virgin=True))
    worked.hand_over(claimed("forever"), deadline_ns=boot_ns() + FOREVER_NS)
    assert its.virgins() == 0, "a fresh one beside it would be more than the size of the pool"


async def test_pipelines_are_not_filled_while_somebody_waits_for_a_fresh_process(pool: MakePool) -> None:
    """Else a busy child never becomes idle, whose place the spare could take; while there is no spare, they are."""
    its = pool()
    await both_can_work(its)
    worked = await idle(its)
    its.used(worked)
    its.mean_run_ns = 10_000
    worked.hand_over(claimed("forever"), deadline_ns=boot_ns() + FOREVER_NS)
    assert its.free() > 0

    its.fresh_waits = True
    assert its.free() == 0
    for child in its.children:
        its.used(child)
    assert its.free() > 0


async def test_nothing_is_put_behind_the_last_task_of_a_child(pool: MakePool) -> None:
    its = pool()
    await both_can_work(its)
    child = await idle(its)
    its.mean_run_ns = 10_000
    child.hand_over(claimed("forever"), deadline_ns=boot_ns() + FOREVER_NS, last=True)
    assert its.free() == 0
    assert list(its.places(1)) == []


async def test_an_idle_child_has_room_also_when_it_was_slow_last(pool: MakePool) -> None:
    """All that it had not read was taken back: there is no end to come that would show it as quick again."""
    its = pool()
    await both_can_work(its)
    child = await idle(its)
    its.mean_run_ns = 10_000
    assert its.free() > 1
    its.slow(child)
    assert its.free() == 1
    assert list(its.places(2)) == [child]


async def test_an_async_child_that_was_slow_has_room_again_though_none_of_its_tasks_ends(
    pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still for a moment: the other slots were lost for as long as its first task ran."""
    monkeypatch.setattr(pools, "SLOW_S", 0.1)
    rooms: list[int] = []
    made: list[Pool] = []
    its = pool(kind="async", on_change=lambda: rooms.extend(each.free() for each in made))
    child = await idle(its)
    made.append(its)
    child.hand_over(claimed("async.sleeps", 3600), deadline_ns=boot_ns() + FOREVER_NS)
    its.slow(child)
    assert its.free() == 0
    await until(lambda: 1 in rooms)  # and said so


async def test_an_async_child_whose_loop_stands_still_has_no_room_until_it_turns(
    pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is given would be taken back, again and again."""
    monkeypatch.setattr(pools, "SLOW_S", 0.02)
    its = pool(kind="async")
    child = await idle(its)
    child.hand_over(claimed("async.sleeps", 3600), deadline_ns=boot_ns() + FOREVER_NS)
    await until(lambda: child.steps() > 0 and child.noted() == 0)
    noted = [0, 7, 7, 7]
    monkeypatch.setattr(child, "noted", noted.pop)
    its.slow(child)
    await until(lambda: its.free() == 1)
    assert noted == []


async def test_a_start_that_fails_is_repeated_and_leaves_nothing(
    pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails when the process is there already, but cannot be watched."""
    open_pidfd, failures = os.pidfd_open, [OSError(errno.EMFILE, "too many open files")] * 3

    def pidfd_open(pid: int) -> int:
        if failures:
            raise failures.pop()
        return open_pidfd(pid)

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    before, descriptors = children_of(os.getpid()), open_files(os.getpid())
    its = pool()
    await until(lambda: len(its.children) == 2 and all(child.ready for child in its.children))

    assert not failures
    assert set(children_of(os.getpid())) - set(before) == {child.pid for child in its.children}
    await its.stop()
    assert open_files(os.getpid()) == descriptors


async def test_a_child_that_hangs_in_its_start_is_replaced(
    pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text(
        "import os, time\n"
        "from taskgate import handler\n"
        "while os.path.exists('hang'): time.sleep(0.01)\n"
        "@handler('fine')\n"
        "def fine(payload): return 1\n"
    )
    (tmp_path / "hang").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pools, "START_S", 0.5)
    its = pool("hangs")
    await until(lambda: len(its.children) == 2)
    first = its.children
    await until(lambda: not set(first) & set(its.children))
    assert all(child.killed for child in first)
    monkeypatch.setattr(pools, "START_S", 60.0)
    (tmp_path / "hang").unlink()

    await until(lambda: len(its.children) == 2 and all(child.ready for child in its.children), within_s=60)

"""The pool: a child that does not start, or does not exit, costs its slot for a while and never for good."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.workers.conftest import FOREVER_NS, JOBS, claimed, until
from workers import pool as pools
from workers.children import ChildProcess, ChildSpec
from workers.guard_client import GuardClient
from workers.pool import Pool
from workers.slot import boot_ns

MakePool = Callable[..., Pool]


@pytest.fixture
async def pool() -> AsyncIterator[MakePool]:
    """Sync pools of one child and its spare."""
    guard = GuardClient(pause_s=30)
    await guard.start()
    made: list[Pool] = []

    def make(handlers: str = JOBS) -> Pool:
        pool = Pool(
            ChildSpec(kind="sync", handlers=(handlers,), slots=2),
            1,
            guard=guard,
            on_message=lambda child, message: None,
            on_exit=lambda child, how: None,
            on_change=lambda: None,
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


async def test_a_child_that_cannot_exit_is_killed(pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a process that its task has left, at exit."""
    monkeypatch.setattr(pools, "EXIT_S", 0.3)
    its = pool()
    child = await idle(its)
    child.hand_over(claimed("leaves", ["joined process"]), deadline_ns=boot_ns() + FOREVER_NS, last=True)

    await until(lambda: child not in its.children)
    assert child.killed
    await until(its.free)


async def test_a_retiring_child_exits_also_when_it_refuses_its_last_task(pool: MakePool) -> None:
    its = pool()
    child = await idle(its)
    child.hand_over(claimed("echo"), deadline_ns=0)
    its.retire(child)

    await until(lambda: child not in its.children)
    assert not child.killed

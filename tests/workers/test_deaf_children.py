"""A child that hears nothing any more keeps neither its slot nor what it was handed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from taskgate.contract.models import Served
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from taskgate.settings import load
from tests.conftest import eventually
from tests.contract.conftest import Hand, read, submission, submit
from tests.processes import state_of
from tests.workers.conftest import JOBS, until
from workers import handover, wire
from workers import pool as pools
from workers.children import ChildProcess
from workers.guard_client import GuardClient
from workers.lease import Lease
from workers.outbox import Outbox
from workers.runner import Runner
from workers.slot import boot_ns


class Worker:
    """A runner with one sync child, and claims by hand."""

    def __init__(self, store: Store, guard: GuardClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self._monkeypatch = monkeypatch
        self.lease = Lease(60, guard)
        self.lease.answered(boot_ns())
        self.runner = Runner(
            load({}, handlers=(JOBS,), worker_processes=1, async_processes=0),
            store,
            Outbox(store, "w1", self.lease),
            self.lease,
            guard,
            worker_id="w1",
            now_ms=lambda: 0,
            on_room=lambda: None,
            on_types=lambda: None,
        )
        self.pool = self.runner.pools["sync"]
        self.pool.fill()
        self._hand = Hand(store, "w1")

    async def take(self) -> None:
        """Claim the one task and hand it to the one child that is free."""
        await until(lambda: self.runner.room().sync == 1)
        await self._hand.beat()
        claimed = await self._hand.claim(served=[Served("default", "echo", "sync")])
        self.runner.handover.take(claimed, self.lease.deadline_ns)

    async def stopped_child(self) -> ChildProcess:
        """It has run a task, is idle, and stopped for ever. From now on who reads nothing is soon found."""
        [task_id] = await submit(self.store, submission("echo", b"1"))
        while (await read(self.store, task_id)).status is not Status.SUCCEEDED:  # else it was slow, and that taken back
            await self.take()
            await until(lambda: not len(self.runner.holdings))
        [child] = [child for child in self.pool.children if self.pool.has_worked(child)]
        os.kill(child.pid, signal.SIGSTOP)
        await until(lambda: state_of(child.pid) == "T")
        self._monkeypatch.setattr(handover, "DEAF_NS", 300_000_000)
        return child


@pytest.fixture
async def worker(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr(pools, "EXIT_S", 0.3)
    guard = GuardClient(pause_s=30)
    await guard.start()
    worker = Worker(store, guard, monkeypatch)
    yield worker
    await worker.pool.stop()
    await guard.close()


async def test_an_idle_child_that_reads_nothing_any_more_is_replaced(worker: Worker, store: Store) -> None:
    child = await worker.stopped_child()
    [task_id] = await submit(store, submission("echo", b"2"))

    while (await read(store, task_id)).status is not Status.SUCCEEDED:
        await worker.take()
        await until(lambda: not len(worker.runner.holdings))

    assert (await read(store, task_id)).attempt == 1
    await until(lambda: child not in worker.pool.children)


async def test_what_a_child_has_read_and_does_not_begin_is_handed_back(worker: Worker, store: Store) -> None:
    """As when a thread of an earlier task keeps the GIL; no timeout counts what has not begun."""
    child = await worker.stopped_child()
    [task_id] = await submit(store, submission("echo", b"2"))
    await worker.take()
    assert isinstance(wire.receive_order(child._childs_socket, wait=False), wire.Task)

    await until(lambda: child not in worker.pool.children)
    await until(lambda: not len(worker.runner.holdings))

    record = await read(store, task_id)
    assert (record.status, record.attempt) == (Status.QUEUED, 0)


async def test_a_task_that_its_child_does_not_begin_is_told_to_start(
    worker: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await worker.stopped_child()
    monkeypatch.setattr(handover, "DEAF_NS", 10**12)
    looking = asyncio.ensure_future(worker.runner.telemetry.run())
    [task_id] = await submit(store, submission("echo", b"2"))
    await worker.take()
    assert isinstance(wire.receive_order(child._childs_socket, wait=False), wire.Task)

    async def stage() -> str | None:
        return (await read(store, task_id)).seen_stage()

    await eventually(stage, lambda told: told == "starting in its child", within_s=20)
    version = (await read(store, task_id)).version
    child.kill()
    await eventually(stage, lambda told: told == "waiting for a worker", within_s=20)
    assert (await read(store, task_id)).version == version + 1, "it was told once"
    looking.cancel()

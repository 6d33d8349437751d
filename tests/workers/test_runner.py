"""The runner: when it has room, and what it does about attempts that are another's."""

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import structlog

from taskgate.contract.models import Served
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from taskgate.settings import load
from tests.contract.conftest import Hand, read, submission, submit
from tests.workers.conftest import JOBS, until
from workers import handover
from workers.claims import Room
from workers.guard_client import GuardClient
from workers.holdings import Holding
from workers.lease import Lease
from workers.outbox import Outbox
from workers.runner import Runner
from workers.slot import boot_ns

NONE = Room(0, 0, 0, 0)


@pytest.fixture
async def guard() -> AsyncIterator[GuardClient]:
    guard = GuardClient(pause_s=30)
    await guard.start()
    yield guard
    await guard.close()


@pytest.fixture
async def lease(guard: GuardClient) -> Lease:
    lease = Lease(60, guard)
    lease.answered(boot_ns())
    return lease


@pytest.fixture
def more() -> dict[str, Any]:
    """Settings of one test."""
    return {}


@pytest.fixture
async def runner(
    store: Store, lease: Lease, guard: GuardClient, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Runner]:
    """What it hands over stays with its child, however long that takes to read it."""
    monkeypatch.setattr(handover, "UNREAD_NS", 10**12)
    runner = Runner(
        load({}, handlers=(JOBS,), worker_processes=1, async_processes=0, **more),
        store,
        Outbox(store, "w1", lease),
        lease,
        guard,
        worker_id="w1",
        now_ms=lambda: 0,
        on_room=lambda: None,
        on_types=lambda: None,
    )
    yield runner
    for pool in runner.pools.values():
        await pool.stop()


async def held(runner: Runner, store: Store) -> Holding:
    """A task of w1, which the runner holds and w2 has taken over."""
    await submit(store)
    w1, w2 = Hand(store, "w1"), Hand(store, "w2")
    await w1.beat()
    await w2.beat()
    holding = Holding(await w1.claim_one())
    runner.holdings.add(holding)
    await w2.reap(w1)
    await w2.claim_one()
    return holding


async def test_there_is_no_room_past_the_lease(runner: Runner, lease: Lease) -> None:
    runner.pools["sync"].fill()
    await until(lambda: runner.room().sync == 1)

    lease.answered(boot_ns() - 60 * 10**9)
    assert runner.room() == NONE
    lease.answered(boot_ns())
    assert runner.room().sync == 1


async def test_there_is_no_room_while_the_guard_is_away(runner: Runner, guard: GuardClient) -> None:
    runner.pools["sync"].fill()
    await until(lambda: runner.room().sync == 1)
    assert guard.pid

    os.kill(guard.pid, signal.SIGKILL)
    await until(lambda: not guard.alive)
    assert runner.room() == NONE
    await until(lambda: runner.room().sync == 1)


async def hand_over(runner: Runner, store: Store, lease: Lease, task_type: str, payload: bytes) -> str:
    """Claimed and given to the one child that is free; the id."""
    runner.pools["sync"].fill()
    await until(lambda: runner.room().sync == 1)
    w1 = Hand(store, "w1")
    await w1.beat()
    [task_id] = await submit(store, submission(task_type, payload))
    runner.handover.take(await w1.claim(served=[Served("default", task_type, "sync")]), lease.deadline_ns)
    return task_id


@pytest.mark.parametrize("what", ["event", "checkpoint", "output", "log"])
async def test_whatever_a_task_says_is_heard(runner: Runner, store: Store, lease: Lease, what: str) -> None:
    task_id = await hand_over(runner, store, lease, "says", msgspec.json.encode(what))
    holding = runner.holdings.get(task_id)
    assert holding is not None

    await until(lambda: holding.spoke_ns > holding.handed_ns)


async def test_what_a_child_has_received_is_not_taken_back(runner: Runner, store: Store, lease: Lease) -> None:
    task_id = await hand_over(runner, store, lease, "sleeps", b"0.3")
    await until(lambda: any(child.received() for child in runner.pools["sync"].children))
    runner.take_back_unread()

    await until(lambda: not len(runner.holdings))
    assert (await read(store, task_id)).status is Status.SUCCEEDED


async def test_a_cancel_is_told_when_it_has_happened(runner: Runner, store: Store, lease: Lease) -> None:
    task_id = await hand_over(runner, store, lease, "sleeps", b"3600")
    await until(lambda: any(child.running() for child in runner.pools["sync"].children))
    [child] = [child for child in runner.pools["sync"].children if child.load]
    os.kill(child.pid, signal.SIGSTOP)  # it hears nothing for a while
    assert await store.cancel(task_id) is Status.CANCELING
    runner.cancel(task_id)

    assert {(await read(store, task_id)).status for _ in range(50)} == {Status.CANCELING}
    os.kill(child.pid, signal.SIGCONT)
    await until(lambda: not len(runner.holdings))
    assert (await read(store, task_id)).status is Status.CANCELED


async def test_a_stop_is_told_when_the_threads_of_the_task_have_ended(
    runner: Runner, store: Store, lease: Lease
) -> None:
    task_id = await hand_over(runner, store, lease, "leaves_a_thread_when_stopped", b"null")
    [child] = [child for child in runner.pools["sync"].children if child.load]
    await until(lambda: any(task.progress for task in child.sample().tasks.values()))
    assert await store.cancel(task_id) is Status.CANCELING
    runner.cancel(task_id)

    await until(lambda: not len(runner.holdings))
    assert (await read(store, task_id)).status is Status.CANCELED
    assert child.exit is not None
    assert runner.pools["sync"].left_behind == {"leaves_a_thread_when_stopped": 1}
    await until(lambda: runner.room().sync == 1)


async def test_what_a_drain_stops_is_handed_back_uncounted(runner: Runner, store: Store, lease: Lease) -> None:
    task_id = await hand_over(runner, store, lease, "sleeps", b"3600")
    await until(lambda: any(child.running() for child in runner.pools["sync"].children))
    runner.drain(60)

    await until(lambda: not len(runner.holdings))
    record = await read(store, task_id)
    assert (record.status, record.attempt) == (Status.QUEUED, 0)


async def test_what_passes_its_memory_limit_in_a_drain_is_charged(runner: Runner, store: Store, lease: Lease) -> None:
    task_id = await hand_over(runner, store, lease, "never_stops", b"null")
    [child] = [child for child in runner.pools["sync"].children if child.load]
    await until(lambda: any(task.progress for task in child.sample().tasks.values()))  # from there on it swallows stops
    holding = runner.holdings.get(task_id)
    assert holding is not None
    runner.drain(60)
    runner._stops.over_memory(holding, 1 << 30, 0.01)

    await until(lambda: not len(runner.holdings))
    record = await read(store, task_id)
    assert (record.status, record.attempt, msgspec.json.decode(record.error)["kind"]) == (Status.RETRYING, 1, "memory")


async def test_a_child_with_leftovers_is_replaced(runner: Runner, store: Store, lease: Lease) -> None:
    await hand_over(runner, store, lease, "leaves", b'["threads"]')
    [worked] = [child for child in runner.pools["sync"].children if child.load]

    await until(lambda: worked not in runner.pools["sync"].children)
    await until(lambda: runner.room().sync == 1)


async def test_a_stale_end_changes_nothing_and_is_counted(runner: Runner, store: Store) -> None:
    holding = await held(runner, store)
    before = await read(store, holding.id)

    runner.ends.finish(holding, "succeeded", result=b"1")

    await until(lambda: not len(runner.holdings))
    assert runner.ends.stale_writes == 1
    assert await read(store, holding.id) == before
    assert before.status is Status.RUNNING


async def test_a_stale_report_changes_nothing_and_is_counted(runner: Runner, store: Store) -> None:
    holding = await held(runner, store)
    before = await read(store, holding.id)

    holding.checkpoint = b"1"
    runner.telemetry.flush(holding)

    await until(lambda: runner.ends.stale_writes == 1)
    assert await read(store, holding.id) == before


async def test_what_a_beat_and_a_refused_write_both_say_is_counted_once(runner: Runner, store: Store) -> None:
    holding = await held(runner, store)
    holding.checkpoint = b"1"
    runner.telemetry.flush(holding)
    await until(lambda: runner.ends.stale_writes == 1)

    runner.lost(holding.id, holding.task.epoch)

    assert runner.ends.stale_writes == 1
    assert not sum(runner._metrics.kills.values.values()), "it had no child"


async def test_a_line_on_a_dead_child_says_whose_it_was(runner: Runner, store: Store, lease: Lease) -> None:
    with structlog.testing.capture_logs() as lines:
        task_id = await hand_over(runner, store, lease, "dies", b'"exit"')
        await until(lambda: not len(runner.holdings))
    [line] = [line for line in lines if line["event"] == "child died"]
    assert (line["task_id"], line["tenant"], line["worker_id"]) == (task_id, "default", "w1")


async def test_what_is_lost_is_that_very_attempt(runner: Runner, store: Store) -> None:
    """The answer to a beat may be late: it must not hit the next attempt of the same task."""
    holding = await held(runner, store)

    runner.lost(holding.id, holding.task.epoch - 1)
    assert len(runner.holdings) == 1
    runner.lost(holding.id, holding.task.epoch)
    assert len(runner.holdings) == 0


@pytest.mark.parametrize("more", [{"child_max_tasks": 1}, {"child_max_rss_mb": 150}])
async def test_a_child_that_is_due_is_replaced_by_one_that_is_ready(runner: Runner, store: Store, lease: Lease) -> None:
    await hand_over(runner, store, lease, "keeps", b"150")
    [worked] = [child for child in runner.pools["sync"].children if child.load]

    await until(lambda: worked not in runner.pools["sync"].children)
    await until(lambda: not len(runner.holdings))
    await until(lambda: runner.room().sync == 1)

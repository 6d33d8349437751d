"""Whoever receives the packet owns the task: nothing is lost and nothing doubled, whoever is killed when."""

import asyncio
import os
import random
import threading
from collections.abc import Callable

import pytest

from tests.processes import open_files
from tests.workers.conftest import Watched, claimed, reported
from workers import wire
from workers.slot import StopReason, boot_ns

Child = Callable[..., Watched]


def test_packets_taken_back_concurrently_are_neither_lost_nor_doubled() -> None:
    """20,000 packets; one thread is the child, this one the supervisor that keeps taking back."""
    count = 20_000
    supervisor, childs = wire.pair()
    childs_own = childs.dup()
    received: list[int] = []
    taken: list[int] = []

    def child() -> None:
        while isinstance(order := wire.receive_order(childs_own, wait=True), wire.Task):
            received.append(order.seq)

    thread = threading.Thread(target=child)
    thread.start()
    sent = 0
    while sent < count or not (received and taken):
        try:
            wire.send(supervisor, _task(sent + 1))
            sent += 1
        except BlockingIOError:
            pass
        if sent % 7 == 0:
            _take(childs, taken)
    supervisor.setblocking(True)
    wire.send(supervisor, wire.Finish())
    thread.join(20)
    _take(childs, taken)

    assert len(received) + len(taken) == sent
    assert sorted(received + taken) == list(range(1, sent + 1))
    for sock in (supervisor, childs, childs_own):
        sock.close()


async def test_after_a_kill_exactly_the_unread_ones_come_back(child: Child) -> None:
    for delay_ms in random.Random(1).sample(range(30), 8):
        watched = await child(slots=64).ready()
        seqs = [watched.hand("sleeps", 0.001) for _ in range(64)]
        await asyncio.sleep(delay_ms / 1000)

        watched.process.kill()
        await watched.exited
        back = watched.process.take_back()

        done = [one.seq for one in watched.of(wire.Done)]
        charged = watched.process.outstanding
        assert len(charged) <= 1, "one runs at a time, so one was lost at most"
        # Not by `received()`: a child can die between taking a packet and saying so.
        assert [*done, *charged, *back] == seqs


async def test_while_a_task_runs_what_waits_behind_it_is_taken_back(child: Child) -> None:
    watched = await child(slots=4).ready()
    running = watched.hand("cleans_up", "")
    waiting = [watched.hand("echo", n) for n in range(3)]
    await reported(watched, running)

    assert watched.process.take_back() == waiting
    assert watched.process.outstanding == {running}
    watched.process.soft_stop(running, StopReason.CANCEL)
    assert (await watched.done(running)).outcome == "succeeded"
    assert len(watched.of(wire.Done)) == 1


async def test_no_more_is_handed_over_than_there_are_slots(child: Child) -> None:
    watched = await child(slots=2).ready()
    watched.hand("sleeps", 60)
    watched.hand("echo", 1)

    assert watched.process.hand_over(claimed("echo"), deadline_ns=boot_ns() + 10**10) is None


async def test_a_child_with_many_tasks_in_hand_is_heard_to_the_last(child: Child) -> None:
    watched = await child(slots=64).ready()
    seqs = [watched.hand("sleeps", 0.001) for _ in range(64)]

    assert [(await watched.done(seq)).outcome for seq in seqs] == ["succeeded"] * 64
    assert watched.process.outstanding == set()


async def test_bytes_in_flight_are_bounded(child: Child) -> None:
    """A socket holds so much and no more; a task that finds no room is not half sent."""
    watched = await child(slots=1000).ready()
    first = watched.hand("cleans_up", "")
    task = claimed("echo", "x" * 40_000)
    sent = []
    while (seq := watched.process.hand_over(task, deadline_ns=boot_ns() + 10**12)) is not None:
        sent.append(seq)

    assert 1 < len(sent) < 50
    await reported(watched, first)
    watched.process.soft_stop(first, StopReason.CANCEL)
    for seq in [first, *sent]:
        assert (await watched.done(seq)).outcome == "succeeded"
    assert watched.process.outstanding == set()


async def test_nothing_is_handed_to_a_child_that_is_not_ready(child: Child) -> None:
    watched = child()

    assert watched.process.hand_over(claimed("echo"), deadline_ns=boot_ns() + 10**10) is None
    await watched.ready()


async def test_garbage_from_a_child_kills_it(child: Child) -> None:
    watched = await child().ready()
    watched.process._childs_socket.send(b"\xc1 no message of ours")

    assert (await watched.exited).signal == 9


@pytest.mark.parametrize("size", [0, 100, wire.INLINE_BYTES, wire.INLINE_BYTES + 1, 3_000_000])
def test_messages_of_any_size_arrive_whole(size: int) -> None:
    supervisor, childs = wire.pair()
    sent = _task(1, payload=bytes(range(256)) * (size // 256 + 1))

    wire.send(supervisor, sent)

    assert wire.receive_order(childs, wait=False) == sent
    supervisor.close()
    assert wire.receive_order(childs, wait=False) is None
    childs.close()


def test_large_messages_leave_no_descriptor_open() -> None:
    supervisor, childs = wire.pair()
    before = open_files(os.getpid())
    for _ in range(50):
        wire.send(supervisor, _task(1, payload=b"x" * 100_000))
        wire.receive_order(childs, wait=False)

    assert open_files(os.getpid()) == before
    supervisor.close()
    childs.close()


def _task(seq: int, payload: bytes = b"null") -> wire.Task:
    return wire.Task(
        seq=seq,
        record=0,
        id="id",
        type="echo",
        number=1,
        payload=payload,
        checkpoint=b"",
        metadata=b"",
        timeout_s=1.0,
        deadline_ns=0,
        last=False,
    )


def _take(childs: object, into: list[int]) -> None:
    while True:
        try:
            order = wire.receive_order(childs, wait=False)  # type: ignore[arg-type]
        except BlockingIOError:
            return
        if isinstance(order, wire.Task):
            into.append(order.seq)
        else:
            return

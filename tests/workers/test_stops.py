"""Soft signal, grace, hard signal; and who pays for an event loop that stands still."""

import json
from collections.abc import Callable

import msgspec
import pytest

from taskgate.contract.states import ErrorKind
from tests.workers.conftest import Watched, claimed, reported, stacks_of, until
from workers.holdings import Holding, Holdings
from workers.slot import StopReason, boot_ns
from workers.stops import LONG_S, Stops

Child = Callable[..., Watched]
GRACE_S = 0.5


class Held:
    """What a child was given, and the stops of it."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.holdings = Holdings()
        self.paused_ns = 0
        self.stacks = stacks_of(self.holdings)
        self.stops = Stops(
            self.holdings, self.stacks, lambda holding: {"task_id": holding.id}, paused_ns=lambda: self.paused_ns
        )

    def hand(self, task_type: str, payload: object = None) -> Holding:
        holding = Holding(claimed(task_type, payload))
        self.holdings.add(holding)
        self.holdings.assign(holding, self.watched.process, self.watched.hand(task_type, payload))
        return holding

    def events(self, holding: Holding) -> list[tuple[str, dict[str, object]]]:
        return [(name, json.loads(data)) for name, data in holding.events]


async def second_step(it: Held, holding: Holding) -> None:
    """Until it is in the step that does what it is here for; after its first one the loop still listens."""

    def steps() -> int:
        task = it.watched.process.sample().tasks.get(holding.seq)
        return task.steps if task is not None else 0

    await until(lambda: steps() >= 2 and it.watched.process.noted() == holding.seq)


@pytest.fixture
def held(child: Child) -> Callable[..., "Held"]:
    return lambda kind, slots=1: Held(child(kind, slots=slots))


async def test_what_does_not_stop_is_killed_after_its_grace_and_both_are_told(held: Callable[..., Held]) -> None:
    it = held("sync")
    await it.watched.ready()
    holding = it.hand("never_stops")
    await reported(it.watched, holding.seq)
    begun_ns = boot_ns()

    it.stops.stop(holding, StopReason.TIMEOUT, grace_s=GRACE_S)
    how = await it.watched.exited

    assert boot_ns() - begun_ns >= GRACE_S * 1e9
    assert (how.signal, holding.killed, it.watched.process.killed) == (9, True, True)
    assert it.events(holding) == [
        ("stopping", {"signal": "SIGUSR1", "reason": "timeout", "grace_s": GRACE_S}),
        ("killed", {"signal": "SIGKILL", "reason": "timeout"}),
    ]


async def test_time_for_which_it_was_paused_is_no_grace(held: Callable[..., Held]) -> None:
    it = held("sync")
    await it.watched.ready()
    holding = it.hand("never_stops")
    await reported(it.watched, holding.seq)
    begun_ns = boot_ns()

    it.stops.stop(holding, StopReason.CANCEL, grace_s=GRACE_S)
    it.paused_ns = int(1e9)
    await it.watched.exited

    assert boot_ns() - begun_ns >= 1e9 + GRACE_S * 1e9


async def test_a_cancel_is_not_overridden_and_overrides(held: Callable[..., Held]) -> None:
    it = held("async", 1)
    await it.watched.ready()
    holding = it.hand("async.swallows")
    await until(it.watched.process.steps)

    for reason in (StopReason.TIMEOUT, StopReason.CANCEL, StopReason.DRAIN, StopReason.CANCEL):
        it.stops.stop(holding, reason, kill=False)

    assert holding.stop is StopReason.CANCEL
    assert [data["reason"] for _, data in it.events(holding)] == ["timeout", "cancel"]


async def test_a_drain_does_not_override_a_timeout(held: Callable[..., Held]) -> None:
    it = held("async", 1)
    await it.watched.ready()
    holding = it.hand("async.swallows")
    await until(it.watched.process.steps)

    for reason in (StopReason.DRAIN, StopReason.TIMEOUT, StopReason.DRAIN):
        it.stops.stop(holding, reason, kill=False)

    assert holding.stop is StopReason.TIMEOUT
    assert [data["reason"] for _, data in it.events(holding)] == ["drain", "timeout"]


@pytest.mark.parametrize("reason", [StopReason.TIMEOUT, StopReason.CANCEL])
async def test_who_blocks_the_loop_pays_for_who_waits(held: Callable[..., Held], reason: StopReason) -> None:
    it = held("async", 2)
    await it.watched.ready()
    waits, blocks = it.hand("async.sleeps", 60), it.hand("async.blocks", 60)
    await second_step(it, blocks)

    it.stops.stop(waits, reason, grace_s=GRACE_S)
    await it.watched.exited

    assert (blocks.killed, blocks.killed_as, waits.killed) == (True, ErrorKind.TIMEOUT, False)
    assert waits.stop is (None if reason is StopReason.TIMEOUT else reason)


async def test_who_swallows_its_stop_pays_itself_however_busy_another_is(held: Callable[..., Held]) -> None:
    it = held("async", 2)
    await it.watched.ready()
    swallows, busy = it.hand("async.swallows"), it.hand("async.busy")
    await second_step(it, busy)

    it.stops.stop(swallows, StopReason.TIMEOUT, kill=False)
    await until(lambda: it.watched.process.steps() != swallows.steps)  # who has no CPU does not block the loop
    it.stops._kill(swallows, it.watched.process)
    await it.watched.exited

    assert (swallows.killed, busy.killed, busy.killed_as) == (True, False, None)


async def test_a_loop_that_is_blocked_by_nobody_known_is_told_as_such(held: Callable[..., Held]) -> None:
    it = held("async", 2)
    await it.watched.ready()
    waits, blocks = it.hand("async.sleeps", 60), it.hand("async.blocks_unseen", 60)
    await reported(it.watched, blocks.seq)

    it.stops.stop(waits, StopReason.TIMEOUT, grace_s=GRACE_S)
    await it.watched.exited

    assert (waits.killed, waits.stop, blocks.killed, it.watched.process.blocked) == (False, None, False, True)


@pytest.mark.parametrize("timeout_s", [LONG_S / 2, LONG_S * 3])
async def test_timeouts_of_any_length_strike_and_not_before_their_time(
    held: Callable[..., Held], timeout_s: float
) -> None:
    it = held("sync")
    await it.watched.ready()
    begun_ns = boot_ns()
    holding = it.hand("never_stops")
    spec = msgspec.structs.replace(holding.task.spec, timeout_s=timeout_s)
    holding.task = msgspec.structs.replace(holding.task, spec=spec)
    holding.handed_ns = begun_ns

    it.stops.arm(holding)
    await until(lambda: holding.stop is StopReason.TIMEOUT)

    assert boot_ns() - begun_ns >= timeout_s * 1e9 - 2_000_000


async def test_what_has_ended_before_gets_no_timer(held: Callable[..., Held]) -> None:
    it = held("sync")
    await it.watched.ready()
    lasting, short = it.hand("never_stops"), Holding(claimed("never_stops"))
    it.stops.arm(short, lasting)
    short.leave_child()

    await until(lambda: bool(lasting.timers))

    assert not short.timers

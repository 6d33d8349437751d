"""An async child: many tasks side by side, and what one of them does to the others."""

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.workers.conftest import UNSENDABLE, Watched, error, reported, until
from workers import wire
from workers.slot import StopReason

Child = Callable[..., Watched]


async def test_tasks_run_side_by_side(child: Child) -> None:
    watched = await child("async", slots=50).ready()

    seqs = [watched.hand("async.meets", 50) for _ in range(50)]
    ends = [await watched.done(seq) for seq in seqs]

    assert {one.outcome for one in ends} == {"succeeded"}, ends[0].error


async def test_both_kinds_of_child_start_run(child: Child) -> None:
    watched = await child("async").ready()

    assert sorted(json.loads((await watched.run("async.starts")).result)) == ["async", "sync"]


@pytest.mark.parametrize("payload", ["value", "exit", "interrupt", "recursion"])
async def test_what_a_handler_raises_fails_its_task_only(child: Child, payload: str) -> None:
    watched = await child("async", slots=2).ready()
    neighbour = watched.hand("async.sleeps", 0.2)

    done = await watched.run("async.raises", payload)

    assert (done.outcome, error(done)["kind"]) == ("failed", "exception")
    assert (await watched.done(neighbour)).outcome == "succeeded"


@pytest.mark.parametrize(("what", "kind"), UNSENDABLE)
async def test_an_end_that_cannot_be_sent_fails_that_task_only(child: Child, what: str, kind: str) -> None:
    watched = await child("async", slots=2).ready()
    neighbour = watched.hand("async.sleeps", 0.2)

    done = await watched.run("async.ends_badly", what)

    assert (done.outcome, error(done)["kind"], done.submitted) == ("failed", kind, [])
    assert (await watched.done(neighbour)).outcome == "succeeded"


@pytest.mark.parametrize(
    ("task_type", "outcome"), [("async.exits_in_a_task", "failed"), ("async.exits_in_a_callback", "succeeded")]
)
async def test_an_exit_anywhere_does_not_end_the_child(child: Child, task_type: str, outcome: str) -> None:
    watched = await child("async", slots=2).ready()
    neighbour = watched.hand("async.sleeps", 0.2)

    assert (await watched.run(task_type)).outcome == outcome
    assert (await watched.done(neighbour)).outcome == "succeeded"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(StopReason.CANCEL, "canceled"), (StopReason.TIMEOUT, "timeout"), (StopReason.DRAIN, "drained")],
)
async def test_a_stop_ends_that_task_only(child: Child, reason: StopReason, outcome: str) -> None:
    watched = await child("async", slots=2).ready()
    neighbour, victim = watched.hand("async.sleeps", 0.3), watched.hand("async.sleeps", 60)
    await reported(watched, victim)

    watched.process.soft_stop(victim, reason)

    assert (await watched.done(victim)).outcome == outcome
    assert (await watched.done(neighbour)).outcome == "succeeded"


async def test_a_stop_at_any_moment_is_answered(child: Child) -> None:
    watched = await child("async", slots=4).ready()
    for round_number in range(200):
        seq = watched.hand("async.sleeps", 0.001)
        if round_number % 4:
            await asyncio.sleep(round_number % 10 / 10_000)
        watched.process.soft_stop(seq, StopReason.CANCEL)
        assert (await watched.done(seq)).outcome in ("succeeded", "canceled")


async def test_a_stop_between_receipt_and_first_step_is_answered(child: Child) -> None:
    """The loop is blocked, a signal waits already: it is handled right after the receipt of the second task."""
    watched = await child("async", slots=2).ready()
    blocker = watched.hand("async.blocks", 0.3)
    await until(lambda: watched.process.sample().noted == blocker)

    watched.process.soft_stop(blocker, StopReason.CANCEL)
    victim = watched.hand("async.sleeps", 60)
    watched.process.soft_stop(victim, StopReason.CANCEL)

    assert (await watched.done(victim)).outcome == "canceled"


async def test_a_handler_can_clean_up(child: Child) -> None:
    watched = await child("async").ready()
    seq = watched.hand("async.cleans_up")
    await _steps(watched, 1)

    watched.process.soft_stop(seq, StopReason.CANCEL)

    assert (await watched.done(seq)).result == b'"stopped: True"'


async def test_one_that_swallows_its_stop_stays_until_it_is_killed(child: Child) -> None:
    watched = await child("async", slots=2).ready()
    seq = watched.hand("async.swallows")
    await _steps(watched, 1)

    watched.process.soft_stop(seq, StopReason.TIMEOUT)
    await watched.run("async.echo", 1)

    assert watched.process.outstanding == {seq}


@pytest.mark.parametrize("task_type", ["async.blocks", "async.blocks_in_a_task"])
async def test_the_one_that_blocks_the_loop_is_noted(child: Child, task_type: str) -> None:
    watched = await child("async", slots=3).ready()
    watched.hand("async.sleeps", 60)
    culprit = watched.hand(task_type, 60)
    watched.hand("async.sleeps", 60)

    async with asyncio.timeout(20):
        while True:
            first = watched.process.sample()
            await asyncio.sleep(0.05)
            second = watched.process.sample()
            # A neighbour may be noted for as long: in the middle of its one step, without a CPU.
            if second.noted == culprit and (first.noted, first.steps) == (second.noted, second.steps):
                break


async def test_the_one_that_kills_the_child_is_noted(child: Child) -> None:
    watched = await child("async", slots=3).ready()
    before = watched.hand("async.sleeps", 60)
    culprit = watched.hand("async.dies")

    ended = await watched.exited

    assert ended.code == 5
    assert watched.process.sample().noted == culprit
    assert watched.process.outstanding == {before, culprit}


async def test_while_everybody_waits_nobody_is_noted(child: Child) -> None:
    watched = await child("async").ready()
    seq = watched.hand("async.sleeps", 60)
    await reported(watched, seq)
    await _steps(watched, 1)

    await until(lambda: not watched.process.sample().noted)


async def test_what_a_handler_started_ends_with_it(child: Child) -> None:
    watched = await child("async").ready()

    await watched.run("async.leaves_a_task")

    assert json.loads((await watched.run("async.ticks", 0.05)).result) == 0


async def test_each_task_has_a_context_of_its_own(child: Child) -> None:
    watched = await child("async", slots=10).ready()

    seqs = {name: watched.hand("async.context", name) for name in "abcdefghij"}

    for name, seq in seqs.items():
        assert json.loads(json.loads((await watched.done(seq)).result)) == ["none", name]


async def test_told_to_finish_it_ends_what_it_has(child: Child) -> None:
    watched = await child("async", slots=2).ready()
    seq = watched.hand("async.sleeps", 0.1)
    watched.process.finish()

    assert (await watched.exited).code == 0
    assert watched.of(wire.Done, seq)[0].outcome == "succeeded"


async def _steps(watched: Watched, wanted: int) -> None:
    await until(lambda: watched.process.sample().steps >= wanted and not watched.process.sample().noted)

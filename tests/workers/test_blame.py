"""Whom the death of a child is charged to."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.workers.conftest import Watched, claimed, reported, until
from workers.blame import Verdict, judge
from workers.holdings import Holding

Child = Callable[..., Watched]


def held(watched: Watched, *seqs: int) -> list[Holding]:
    holdings = [Holding(claimed("any"), child=watched.process, seq=seq) for seq in seqs]
    assert {each.seq for each in holdings} == watched.process.outstanding
    return holdings


async def waiting(watched: Watched, *seqs: int) -> None:
    """Until each has made the only step that it makes: from then on nobody is noted."""
    for seq in seqs:
        await reported(watched, seq)
    await until(lambda: not watched.process.noted())


async def test_the_one_that_was_being_stepped_is_guilty_and_the_others_are_not(child: Child) -> None:
    watched = await child("async", slots=3).ready()
    first, second = watched.hand("async.sleeps", 60), watched.hand("async.sleeps", 60)
    await until(lambda: watched.process.received() >= second)
    dies = watched.hand("async.dies")
    how = await watched.exited

    holdings = held(watched, first, second, dies)
    assert judge(watched.process, holdings, how, paused=False) == Verdict([holdings[2]], known=True)


async def test_where_nobody_was_being_stepped_all_are_suspects(child: Child) -> None:
    watched = await child("async", slots=2).ready()
    first, second = watched.hand("async.sleeps", 60), watched.hand("async.sleeps", 60)
    await waiting(watched, first, second)
    os.kill(watched.process.pid, signal.SIGKILL)
    how = await watched.exited

    assert judge(watched.process, held(watched, first, second), how, paused=False) == Verdict([], known=False)


async def test_a_kill_of_ours_is_charged_to_those_it_was_meant_for(child: Child) -> None:
    watched = await child("async", slots=2).ready()
    holdings = held(watched, watched.hand("async.sleeps", 60), watched.hand("async.sleeps", 60))
    holdings[1].killed = True
    watched.process.kill()
    how = await watched.exited

    assert judge(watched.process, holdings, how, paused=False) == Verdict([holdings[1]], known=True)


async def test_what_the_guard_kills_after_the_pause_all_pay_for_and_nobody_is_a_suspect(child: Child) -> None:
    watched = await child("async", slots=2).ready()
    first, second = watched.hand("async.sleeps", 60), watched.hand("async.sleeps", 60)
    await waiting(watched, first, second)
    os.kill(watched.process.pid, signal.SIGKILL)
    how = await watched.exited

    holdings = held(watched, first, second)
    assert judge(watched.process, holdings, how, paused=True) == Verdict(holdings, known=True)


async def test_a_crash_just_before_the_pause_is_still_charged_to_who_was_stepped(child: Child) -> None:
    watched = await child("async", slots=2).ready()
    sleeps = watched.hand("async.sleeps", 60)
    await until(lambda: watched.process.received() >= sleeps)
    dies = watched.hand("async.dies")
    how = await watched.exited

    holdings = held(watched, sleeps, dies)
    assert judge(watched.process, holdings, how, paused=True) == Verdict([holdings[1]], known=True)


async def test_garbage_makes_all_of_an_event_loop_suspects(child: Child) -> None:
    watched = await child("async", slots=2).ready()
    holdings = held(watched, watched.hand("async.sleeps", 60))
    watched.process._childs_socket.send(b"\xc1 no message of ours")
    how = await watched.exited

    assert judge(watched.process, holdings, how, paused=False) == Verdict([], known=False)


@pytest.mark.parametrize(("kind", "alone"), [("sync", False), ("async", True)])
async def test_one_that_was_alone_is_guilty(child: Child, kind: str, alone: bool) -> None:
    watched = await child(kind, slots=1, alone=alone).ready()
    seq = watched.hand("shows" if kind == "sync" else "async.sleeps", 60)
    if kind == "sync":
        await reported(watched, seq)
    holdings = held(watched, seq)
    os.kill(watched.process.pid, signal.SIGKILL)
    how = await watched.exited

    assert judge(watched.process, holdings, how, paused=False) == Verdict(holdings, known=True)

"""What one task leaves behind, the next does not find (F19, F26)."""

import asyncio
import json
import os
import signal
from collections.abc import Callable

import pytest

from tests.processes import open_files
from tests.workers.conftest import JOBS, WITHIN_S, Watched, reported, until
from workers import wire
from workers.slot import StopReason

Child = Callable[..., Watched]


async def rest(watched: Watched) -> None:
    """Until the child has tidied up, which it does between two tasks, and told it."""
    await watched.run("sleeps", 0.06)
    await watched.run("echo")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("environment", "environment"),
        ("folder", "working directory"),
        ("umask", "umask"),
        ("recursion", "recursion limit"),
        ("socket", "socket timeout"),
        ("locale", "locale"),
        ("alarm", "timers"),
        ("ignored", "signal handlers"),
        ("swallowed", "signal handlers"),
        ("blocked", "signal mask"),
        ("stack", "signal handlers"),
    ],
)
async def test_what_can_be_taken_back_is_and_is_told(child: Child, what: str, told: str) -> None:
    watched = await child(slots=2).ready()
    fresh = json.loads((await watched.run("sees")).result)

    await watched.run("leaves", [what])
    await rest(watched)

    assert json.loads((await watched.run("sees")).result) == fresh
    [unclean] = watched.of(wire.Unclean)
    assert (unclean.kept, unclean.undone) == ([], [told])


async def test_a_child_can_be_stopped_after_a_task_changed_its_signals(child: Child) -> None:
    watched = await child().ready()
    await watched.run("leaves", ["ignored", "blocked", "stack"])
    await rest(watched)
    seq = watched.hand("forever")

    await reported(watched, seq)
    assert "in forever" in await watched.process.dumps.take(None, WITHIN_S)
    watched.process.soft_stop(seq, StopReason.CANCEL)

    assert (await watched.done(seq)).outcome == "canceled"


@pytest.mark.parametrize(
    ("what", "said"), [("threads", "10 threads"), ("files", "50 open files"), ("process", "1 process")]
)
async def test_what_cannot_be_taken_back_is_told(child: Child, what: str, said: str) -> None:
    watched = await child().ready()

    await watched.run("leaves", [what])

    await watched.until(lambda: watched.of(wire.Unclean))
    assert watched.of(wire.Unclean)[0].kept == [said]
    if what == "process":
        await watched.exited  # what goes on beside the next task could print into that one's output
    else:
        assert (await watched.run("echo", 1)).outcome == "succeeded", "it works on until it is replaced"


async def test_processes_from_before_the_first_task_are_no_leak(child: Child) -> None:
    """A pool that a child opens at its start is there for all its tasks."""
    watched = await child(handlers=(JOBS, "tests.workers.helper_process")).ready()

    await watched.run("echo", 1)
    await rest(watched)

    assert watched.of(wire.Unclean) == []
    assert (await watched.run("helper_lives")).result == b"true"


async def test_a_task_finds_nothing_of_the_one_before_in_the_shared_memory(child: Child) -> None:
    watched = await child(slots=8).ready()

    while_it_runs = await watched.run("shows_a_secret")
    afterwards = await watched.run("looks_for_the_secret")

    assert json.loads(while_it_runs.result) == 3, "the search is blind"
    assert json.loads(afterwards.result) == 0


async def test_small_leaks_are_told_once_they_add_up(child: Child) -> None:
    """A pool that is opened at first use is none; growth is."""
    watched = await child().ready()

    for _ in range(8):
        await watched.run("leaves", ["thread"])
        await rest(watched)
    assert watched.of(wire.Unclean) == []
    await watched.run("leaves", ["thread"])

    await watched.until(lambda: watched.of(wire.Unclean))
    assert watched.of(wire.Unclean)[0].kept == ["9 threads"]


async def test_two_hundred_tasks_that_leave_everything_change_nothing(child: Child) -> None:
    watched = await child(slots=2).ready()
    fresh = json.loads((await watched.run("sees")).result)
    before = open_files(watched.process.pid)

    for _ in range(200):
        await watched.run("leaves", ["environment", "folder", "umask", "socket", "alarm", "recursion"])
    await rest(watched)

    assert json.loads((await watched.run("sees")).result) == fresh
    # At most: the child may be tidying up at the moment of either count, and reads a folder for that.
    await until(lambda: open_files(watched.process.pid) <= before)


async def test_an_async_child_tidies_when_nobody_runs(child: Child) -> None:
    watched = await child("async").ready()

    await watched.run("async.leaves", ["threads"])

    await watched.until(lambda: watched.of(wire.Unclean))
    assert watched.of(wire.Unclean)[0].kept == ["10 threads"]


async def test_calls_in_threads_that_outlive_their_task_are_told_while_others_run(child: Child) -> None:
    """Of forty that hang the threads of a loop are all taken: no other call would ever begin."""
    watched = await child("async", slots=50).ready()
    neighbour = watched.hand("async.sleeps", 600)
    hang = [watched.hand("async.calls", 3600) for _ in range(40)]
    await until(lambda: watched.process.steps() >= 41)

    for seq in hang:
        watched.process.soft_stop(seq, StopReason.TIMEOUT)
        assert (await watched.done(seq)).outcome == "timeout"

    await watched.until(lambda: watched.of(wire.Unclean))
    assert watched.of(wire.Unclean)[0].kept == ["1 call in threads that did not end with their task"]
    assert (await watched.run("async.calls", 0)).outcome == "succeeded"
    assert watched.process.outstanding == {neighbour}


@pytest.mark.parametrize("stands_still_s", [0, 1.5])
async def test_a_call_in_a_thread_that_ends_soon_after_its_task_is_nothing(child: Child, stands_still_s: float) -> None:
    watched = await child("async").ready()

    seq = watched.hand("async.calls", 0.3)
    await until(lambda: watched.process.steps() and not watched.process.noted())
    watched.process.soft_stop(seq, StopReason.CANCEL)
    assert (await watched.done(seq)).outcome == "canceled"
    if stands_still_s:
        os.kill(watched.process.pid, signal.SIGSTOP)
        await asyncio.sleep(stands_still_s)
        os.kill(watched.process.pid, signal.SIGCONT)
    await watched.run("async.sleeps", 1.2)

    assert watched.of(wire.Unclean) == []

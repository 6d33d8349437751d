"""Output of a child: whose it is, in which order, all of it up to a death."""

import json
import os
import re
import select
from collections.abc import Callable

import pytest

from tests.processes import open_files
from tests.workers.conftest import Watched, until
from workers import wire
from workers.slot import StopReason

Child = Callable[..., Watched]
WORDS = ("printf", "out", "err", "raw", "sh", "end", "WARNING", "jobs:", "")
FULL = pytest.mark.full
HANDLERS = ("tests.workers.printing_jobs",)


def printed(watched: Watched, seq: int) -> str:
    """What was read of a task so far, as it would be shown, in order."""
    return b"".join(one.data for one in watched.of(wire.Printed, seq)).decode("utf-8", "backslashreplace")


def streams(watched: Watched, seq: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in watched.of(wire.Printed, seq):
        found[one.stream] = found.get(one.stream, "") + one.data.decode()
    return found


async def unclean(watched: Watched, count: int) -> wire.Unclean:
    """The last of so many that the child told."""
    await watched.until(lambda: len(watched.of(wire.Unclean)) == count)
    told: wire.Unclean = watched.of(wire.Unclean)[-1]
    return told


async def test_what_a_sync_task_writes_is_captured_in_order(child: Child) -> None:
    watched = await child(handlers=HANDLERS).ready()
    await watched.run("prints")
    assert printed(watched, 1) == (
        "print\nshell\nerror\nprintf\nraw\nbuffer\nINFO jobs: info 1\nwarning careful n=3 what='a b'\ndunder\n"
        "no end of line"
    )
    assert streams(watched, 1) == {
        "stdout": "print\nshell\nprintf\nraw\nbuffer\nno end of line",
        "stderr": "error\ndunder\n",
        "log": "INFO jobs: info 1\nwarning careful n=3 what='a b'\n",
    }


async def test_errors_of_programs_tracebacks_and_garbage_are_captured_as_they_are(child: Child) -> None:
    watched = await child(handlers=HANDLERS).ready()
    await watched.run("prints_raw_errors")
    assert streams(watched, 1) == {"stderr": "of a program\nraw\n"}
    await watched.run("raises_in_log")
    logged = streams(watched, 2)["log"]
    assert logged.startswith("ERROR jobs: went wrong\nTraceback")
    assert logged.endswith("ValueError: oops\n")
    assert (await watched.run("garbage")).outcome == "succeeded"
    data = b"".join(one.data for one in watched.of(wire.Printed, 3))
    assert data == bytes(range(256)) + b"\\ud800 \x1b[31mred \x00\n"


async def test_no_byte_of_one_task_is_taken_for_anothers(child: Child) -> None:
    """They wait for one another in the child's socket, and print on every way, the last word unfinished."""
    watched = await child(handlers=HANDLERS, slots=8).ready()
    names = ["n" * n for n in range(1, 41)]
    waiting = list(names)
    seqs: dict[str, int] = {}
    while waiting:
        await watched.until(lambda: watched.process.load < 8)
        name = waiting.pop(0)
        seqs[name] = watched.hand("tells", name)
    for name, seq in seqs.items():
        assert (await watched.done(seq)).outcome == "succeeded"
        found = "\n".join(streams(watched, seq).values())
        assert set(found.replace(" ", "\n").split("\n")) <= {name, *WORDS}, found
        assert len(re.findall(rf"\b{name}\b", found)) == (8 if len(name) % 3 == 0 else 6), found
        assert f"{name} end" in found


async def test_what_is_printed_outside_of_tasks_is_nobodys_and_silence_costs_no_word(child: Child) -> None:
    watched = await child(handlers=HANDLERS).ready()
    await watched.until(lambda: printed(watched, 0).endswith("\n"))
    assert printed(watched, 0) == "while it is imported\n"
    before = len(watched.messages)
    for _ in range(20):
        await watched.run("quiet")
    assert len(watched.messages) == before + 20


@pytest.mark.parametrize("way", [pytest.param("exit", marks=FULL), "kill", pytest.param("segfault", marks=FULL)])
async def test_a_task_that_dies_has_told_all_that_it_printed(child: Child, way: str) -> None:
    watched = await child(handlers=HANDLERS).ready()
    seq = watched.hand("prints_and_dies", way)
    await watched.exited
    assert printed(watched, seq) == "a line\nlog line\nfrom C, and no end of line"


async def test_an_async_task_that_dies_has_told_all_that_it_printed(child: Child) -> None:
    watched = await child("async", handlers=HANDLERS, slots=4).ready()
    seq = watched.hand("async_dies")
    await watched.exited
    assert printed(watched, seq) == "a line, and no end of line"


async def test_whatever_a_task_does_to_its_streams_the_next_one_is_heard(child: Child) -> None:
    watched = await child(handlers=HANDLERS).ready()
    for how in ("close", "replace", "wrap", "reconfigure", "redirect", "descriptors"):
        seq = watched.hand("misuses_streams", how)
        assert (await watched.done(seq)).outcome == "succeeded"
        if how == "redirect":
            assert printed(watched, seq) == "KEPT FOR ITSELF\n"
        if how == "descriptors":  # found when the child looks, before it idles at the latest
            await until(lambda: any("standard streams" in one.undone for one in watched.of(wire.Unclean)[-1:]))
        seq = watched.hand("prints")
        await watched.done(seq)
        assert printed(watched, seq).startswith("print\nshell\nerror\nprintf\nraw\nbuffer\n"), how


PRINTED = "print\nshell\nerror\nprintf\nraw\nbuffer\nINFO jobs: info 1\nwarning careful n=3 what='a b'\n"


async def test_whatever_mutes_a_task_does_not_mute_the_one_right_behind_it(child: Child) -> None:
    watched = await child(handlers=HANDLERS, slots=2).ready()
    for how in ("basicConfig", "disable", "no handlers", "write", "closed", "descriptors"):
        culprit, seq = watched.hand("misuses_streams", how), watched.hand("prints")
        assert (await watched.done(culprit)).outcome == "succeeded"
        assert (await watched.done(seq)).outcome == "succeeded", how
        assert printed(watched, seq).startswith(PRINTED), how
        wanted = "loggers" if how in ("basicConfig", "disable", "no handlers") else "standard streams"
        assert watched.of(wire.Unclean)[-1].undone == [wanted], how


async def test_what_mutes_single_loggers_is_found_when_the_child_looks(child: Child) -> None:
    watched = await child(handlers=HANDLERS).ready()
    for count, how in enumerate(("disabled", "structlog"), 1):
        await watched.run("misuses_streams", how)
        assert (await unclean(watched, count)).undone == ["loggers"]
        seq = watched.hand("prints")
        await watched.done(seq)
        assert printed(watched, seq).startswith(PRINTED), how


async def test_an_async_task_that_mutes_its_child_is_undone_while_others_run_and_told_afterwards(child: Child) -> None:
    watched = await child("async", handlers=HANDLERS, slots=4).ready()
    neighbour = watched.hand("async_waits")
    await watched.run("async_mutes")
    seq = watched.hand("async_logs")
    await watched.done(seq)

    assert printed(watched, seq) == "INFO jobs: heard\n"
    assert watched.of(wire.Unclean) == []
    watched.process.soft_stop(neighbour, StopReason.CANCEL)
    await watched.until(lambda: watched.of(wire.Unclean))
    assert watched.of(wire.Unclean)[-1].undone == ["loggers"]


async def test_all_of_a_flood_arrives_and_the_end_comes_after_it(child: Child) -> None:
    watched = await child(handlers=HANDLERS).ready()
    seq = watched.hand("floods", 4)
    await watched.done(seq)
    assert len(printed(watched, seq)) == 4 << 20


@pytest.mark.parametrize("program", [pytest.param("exec yes", marks=FULL), "while sleep 0.01; do echo more; done"])
async def test_one_that_leaves_a_printing_program_behind_is_the_last_of_its_child(child: Child, program: str) -> None:
    """Nobody could tell what that prints from what the next task does."""
    watched = await child(handlers=HANDLERS, slots=2).ready()
    first, second = watched.hand("leaves_a_printer", program), watched.hand("quiet")
    done = await watched.done(first)
    if done.left_running:
        watched.process.kill()
    await watched.until(lambda: watched.exited.done() or watched.of(wire.Done, second))
    assert not watched.of(wire.Done, second)
    assert not watched.of(wire.Printed, second)
    assert watched.process.take_back() == [second]


async def test_async_neighbours_are_told_apart(child: Child) -> None:
    watched = await child("async", handlers=HANDLERS, slots=30).ready()
    names = [f"task{n}" for n in range(30)]
    seqs = {name: watched.hand("async_tells", name) for name in names}
    for name, seq in seqs.items():
        assert (await watched.done(seq)).outcome == "succeeded"
        lines = printed(watched, seq)
        own = f"{name} out\n{name} err\nWARNING jobs: {name}\n" * 3
        assert lines == f"{own}{name} subtask\n{name} thread\n{name} executor\n{name} end"


async def test_what_an_async_task_cannot_be_known_by_is_nobodys(
    child: Child, capfd: pytest.CaptureFixture[str]
) -> None:
    watched = await child("async", handlers=HANDLERS, slots=4).ready()
    seq = (await watched.run("async_outside")).seq
    await until(lambda: "from a thread" in printed(watched, 0) and "from C" in printed(watched, 0))
    assert not watched.of(wire.Printed, seq)
    [line] = [line for line in capfd.readouterr().err.splitlines() if "forged" in line]
    assert json.loads(line)["message"] == 'logged\n{"message": "forged"}', "no task writes a line of the log"


async def test_an_async_flood_is_cut_instead_of_holding_its_neighbours_up(child: Child) -> None:
    """Every byte has arrived or is counted, before the end is told."""
    watched = await child("async", handlers=HANDLERS, slots=4).ready()
    seq = watched.hand("async_floods", 8)
    # Without a turn of the loop: of its first half, at least, nobody reads anything, so that it finds no room.
    while not select.select([watched.process._socket], [], [], 0.001)[0]:
        if (task := watched.process.sample().tasks.get(seq)) and task.progress:
            break
    await watched.done(seq)
    pieces = watched.of(wire.Printed, seq)
    assert sum(len(one.data) + one.dropped for one in pieces) == 8 << 20
    assert sum(one.dropped for one in pieces) > 0
    neighbour = watched.hand("async_tells", "n")
    await watched.done(neighbour)
    assert printed(watched, neighbour).endswith("n end")


async def test_pipes_of_children_that_are_gone_are_closed(child: Child) -> None:
    before = open_files(os.getpid())
    watched = child(handlers=HANDLERS)
    await watched.bury()
    assert open_files(os.getpid()) == before

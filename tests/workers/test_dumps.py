"""What faulthandler writes is understood, whatever of it there is; what is told is bounded."""

import asyncio
import os

import msgspec
import pytest

from taskgate.contract import stacks
from taskgate.contract.stacks import Frame, Thread
from tests.workers.conftest import WITHIN_S
from workers import dumps, sync_child
from workers.dumps import MAIN_THREAD, QUIET_S, Dump, Dumps, main_thread, of_handler, parse

OURS = sync_child.__file__
WHOLE = f"""\
Thread 0x00007f01 (most recent call first):
  File "/a/pool.py", line 7 in work
  <no Python frame>

Current thread 0x00007f02 (most recent call first):
  File "/a/job.py", line 3 in inner
  File "/a/job.py", line ??? in outer
  File "{OURS}", line 9 in _work
  File "<frozen runpy>", line 88 in _run_code
  File "<frozen runpy>", line 198 in _run_module_as_main
"""


def test_the_main_thread_shows_what_the_handler_does_and_stands_first() -> None:
    dump = parse(WHOLE)

    assert of_handler(dump) == [
        Thread(MAIN_THREAD, True, [Frame("/a/job.py", 3, "inner"), Frame("/a/job.py", None, "outer")]),
        Thread("thread 0x7f01", False, [Frame("/a/pool.py", 7, "work")]),
    ]
    assert (dump.headline, dump.struck_main) == ("", True)


def test_later_pythons_name_threads() -> None:
    named = WHOLE.replace("0x00007f01 (", "0x00007f01 [pool-1] (")

    assert of_handler(parse(named))[1].name == "pool-1"


def test_what_was_cut_is_told_as_far_as_it_goes() -> None:
    for end in range(len(WHOLE)):
        dump = parse(WHOLE[:end])
        assert all(frame in of_handler(parse(WHOLE))[0].frames for one in main_thread(dump) for frame in one.frames)


def test_a_stack_deeper_than_faulthandler_writes_is_the_main_threads() -> None:
    frame = '  File "/a/job.py", line 3 in deeper\n'
    for end in ("  ...\n", ""):  # until, and from, Python 3.13
        [thread] = main_thread(parse(f"Current thread 0x1 (most recent call first):\n{frame * 100}{end}"))

        assert (len(thread.frames), thread.truncated) == (100, True)


def test_a_fatal_error_has_its_name_and_what_was_written_before_is_forgotten() -> None:
    dump = parse(WHOLE + "Fatal Python error: Aborted\n\n" + WHOLE + "\nExtension modules: a, b (total: 2)\n")

    assert dump.headline == "Fatal Python error: Aborted"
    assert len(dump.threads) == 2


async def test_a_dump_in_whose_middle_its_child_lost_its_cpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "LOST_S", WITHIN_S)
    half = len(WHOLE) // 2
    its = Dumps(lambda: None)
    dump = its.begin("now")
    os.write(its.writer, WHOLE[:half].encode())
    await asyncio.sleep(10 * QUIET_S)
    assert not dump.done()
    os.write(its.writer, WHOLE[half:].encode())

    assert await dump == WHOLE
    its.close()


async def test_a_dump_whose_end_cannot_be_seen_ends_when_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "LOST_S", 3600)
    frames = '  File "/a/job.py", line 3 in deeper\n' * 100
    its = Dumps(lambda: None)
    dump = its.begin("now")
    os.write(its.writer, f"Current thread 0x1 (most recent call first):\n{frames}".encode())

    assert (await dump).endswith(frames)
    its.close()


def test_other_text_is_no_stack() -> None:
    assert parse("File in\nCurrent thread\n\0\x1b[31m") == Dump("", [])


def test_controls_of_a_terminal_are_shown_not_sent() -> None:
    [thread] = main_thread(parse(WHOLE.replace("inner", "in\x1bner")))

    assert thread.frames[0].function == "in\\x1bner"


def test_of_a_large_stack_the_innermost_frames_of_the_handlers_thread_are_kept() -> None:
    frames = [Frame("/a/job.py", n, "f" * 50) for n in range(100)]

    kept = stacks.bounded([Thread("other", False, frames), Thread(MAIN_THREAD, True, frames)], 2000)

    assert [(one.name, one.truncated) for one in kept] == [(MAIN_THREAD, True)]
    assert kept[0].frames == frames[: len(kept[0].frames)]
    assert 1000 < len(stacks.text(kept)) <= 2000
    assert stacks.text(kept).endswith("\n  …")


@pytest.mark.parametrize("name", ["f" * 200, "\N{SNOWMAN}" * 200, '"\\' * 100, ""])
def test_no_answer_is_larger_than_64_kib_whatever_names_functions_have(name: str) -> None:
    told = [Thread(name, n == 7, [Frame(name, 10**9, name)] * 100, [name] * 50) for n in range(50)]

    kept = stacks.bounded(told)

    assert 0 < len(msgspec.json.encode({"threads": kept, "text": stacks.text(kept)})) < 63 * 1024
    short = stacks.text(stacks.bounded(told, stacks.ERROR_BYTES))
    assert len(short.encode()) <= stacks.ERROR_BYTES

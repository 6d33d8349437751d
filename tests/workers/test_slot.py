"""The slot: what a reader in another process believes."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from workers.slot import RECEIVED, Progress, Slot, StopReason, boot_ns


@pytest.fixture
def slot() -> Iterator[Slot]:
    slot = Slot.create(3)
    yield slot
    slot.close()


def test_progress_is_read_back(slot: Slot) -> None:
    record = slot.records[1]
    record.begin(7, 123)
    before_ns = boot_ns()
    record.writer(7).progress(3, 10, "files", "count", "a/b.py")

    task = slot.sample().tasks[7]

    assert (task.started_ns, task.waiting) == (123, None)
    assert task.progress is not None
    assert (task.progress.current, task.progress.total) == (3, 10)
    assert (task.progress.unit, task.progress.stage, task.progress.message) == ("files", "count", "a/b.py")
    assert before_ns <= task.progress.at_ns <= boot_ns()


def test_without_progress_there_is_none(slot: Slot) -> None:
    slot.records[0].begin(1, 1)

    assert slot.sample().tasks[1].progress is None


def test_between_tasks_nothing_is_shown(slot: Slot) -> None:
    record = slot.records[0]
    record.begin(1, 1)
    record.writer(1).progress(1, None, "", "", "")
    record.end()

    assert slot.sample().tasks == {}


def test_nothing_of_a_task_is_left_for_the_next(slot: Slot) -> None:
    record = slot.records[0]
    record.begin(1, 1)
    record.writer(1).progress(1, 2, "secret", "secret", "secret")
    record.writer(1).waiting("secret")
    record.end()

    record.begin(2, 2)

    assert b"secret" not in os.pread(slot.fd, 4096, 0)


def test_a_write_of_an_older_task_is_not_believed(slot: Slot) -> None:
    record = slot.records[0]
    record.begin(1, 1)
    late = record.writer(1)
    record.begin(2, 2)
    late.progress(66, None, "", "", "late")
    late.waiting("late")

    task = slot.sample().tasks[2]

    assert (task.progress, task.waiting) == (None, None)


def test_waiting_is_shown_while_it_lasts(slot: Slot) -> None:
    record = slot.records[0]
    record.begin(1, 1)
    writer = record.writer(1)

    writer.waiting("the printer")
    assert slot.sample().tasks[1].waiting == "the printer"
    writer.waiting("")
    assert slot.sample().tasks[1].waiting is None


def test_long_texts_are_cut_between_characters(slot: Slot) -> None:
    record = slot.records[0]
    record.begin(1, 1)
    record.writer(1).progress(1, None, "é" * 50, "x" * 63 + "é", "\ud800€" * 200)

    progress = slot.sample().tasks[1].progress

    assert progress is not None
    assert progress.unit == "é" * 12
    assert progress.stage == "x" * 63
    assert progress.message.startswith("?€?€")


@pytest.mark.parametrize("current", ["5", None, 10**400])
def test_a_progress_that_is_no_number_is_refused(slot: Slot, current: object) -> None:
    record = slot.records[0]
    record.begin(1, 1)
    writer = record.writer(1)
    writer.progress(1, None, "", "", "")

    with pytest.raises(Exception):  # noqa: B017, PT011 — struct.error or OverflowError, as Python's versions have it
        writer.progress(current, None, "", "", "")  # type: ignore[arg-type]
    writer.progress(2, None, "", "", "")

    progress = slot.sample().tasks[1].progress
    assert progress is not None
    assert progress.current == 2


_WRITERS = """
import sys, threading
from workers.slot import Slot

writer = Slot(int(sys.argv[1]), 3).records[0].writer(1)

def write(n):
    while True:
        n = (n * 7919 + 1) % 100_003
        writer.progress(n, n + 0.5, str(n), str(n) * 3, str(n) * 9)

for start in range(2):
    threading.Thread(target=write, args=(start,), daemon=True).start()
write(99)
"""


def test_progress_is_never_torn(slot: Slot) -> None:
    """Writers in another process, from several threads, as fast as they can; each value carries its own proof."""
    record = slot.records[0]
    record.begin(1, 1)
    writers = subprocess.Popen([sys.executable, "-c", _WRITERS, str(slot.fd)], pass_fds=(slot.fd,))
    try:
        seen: set[int] = set()
        ends_at = time.monotonic() + 20
        while len(seen) < 20_000 and time.monotonic() < ends_at:
            progress = slot.sample().tasks[1].progress
            if progress is None:
                continue
            n = int(progress.current)
            seen.add(n)
            assert (progress.total, progress.unit) == (n + 0.5, str(n))
            assert (progress.stage, progress.message) == (str(n) * 3, str(n) * 9)
        assert len(seen) > 100
    finally:
        writers.kill()
        writers.wait()


def test_a_writer_that_lost_its_cpu_has_taken_nothing_back(slot: Slot) -> None:
    """Packing zeroes first: whoever looks just then sees the value before."""
    record = slot.records[0]
    record.begin(1, 1)
    record.writer(1).progress(5, 10, "", "", "")
    assert slot.sample().tasks[1].progress is not None
    zeroed = Slot(os.dup(slot.fd), 3)
    zeroed.records[0].writer(1)._memory[64 + 112 : 64 + 448] = bytes(336)
    zeroed.close()

    progress = slot.sample().tasks[1].progress
    assert progress is not None
    assert progress.current == 5


def test_steps_and_calls_of_an_async_task_are_read_while_they_move(slot: Slot) -> None:
    record = slot.records[1]
    record.begin(7, 1, cpu_ns=11, gc_ns=12)
    slot.words[record.steps_word] += 3
    record.calls(2)

    task = slot.sample().tasks[7]
    assert (task.cpu_ns, task.gc_ns, task.steps, task.calls) == (11, 12, 3, 2)
    record.end()
    record.begin(8, 1)
    assert slot.sample().tasks[8][4:] == (0, 0, 0, 0)


def test_a_stop_is_meant_for_one_task(slot: Slot) -> None:
    record = slot.records[0]
    record.begin(5, 1)
    record.ask_stop(5, StopReason.TIMEOUT)

    assert record.stop_reason(5) is StopReason.TIMEOUT
    record.begin(6, 1)
    assert record.stop_reason(6) is None


def test_a_stop_asked_before_the_start_is_seen_after_it(slot: Slot) -> None:
    record = slot.records[0]
    record.ask_stop(5, StopReason.CANCEL)

    record.begin(5, 1)

    assert record.stop_reason(5) is StopReason.CANCEL


def test_both_sides_see_the_same_memory(slot: Slot) -> None:
    other = Slot(os.dup(slot.fd), 3)
    other.words[RECEIVED] = 2**40
    other.records[2].begin(2**40, 5)

    assert slot.sample().received == 2**40
    assert list(slot.sample().tasks) == [2**40]
    other.close()


def test_progress_as_the_record_shows_it() -> None:
    progress = Progress(1.0, 3.0, "files", "count", "m", at_ns=5_000_000_000)

    shown = json.loads(progress.json(attempt=2, now_ms=1_000_000, now_ns=7_000_000_000))

    assert shown == {
        "attempt": 2,
        "current": 1,
        "total": 3,
        "percent": 33.3,
        "unit": "files",
        "stage": "count",
        "message": "m",
        "at_ms": 998_000,
    }


@pytest.mark.parametrize("current", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("total", [0.0, None, math.inf, 10.0])
def test_odd_numbers_give_valid_json(current: float, total: float | None) -> None:
    raw = Progress(current, total, "", "", "", at_ns=0).json(attempt=1, now_ms=1, now_ns=1)

    assert "NaN" not in raw.decode()
    assert (json.loads(raw)["current"], json.loads(raw)["percent"]) == (None, None)


def test_of_an_endless_whole_there_is_no_part() -> None:
    shown = json.loads(Progress(5.0, math.inf, "", "", "", at_ns=0).json(attempt=1, now_ms=1, now_ns=1))

    assert (shown["current"], shown["total"], shown["percent"]) == (5, None, None)


def test_progress_costs_microseconds(slot: Slot) -> None:
    """Budget 1 µs, with the slack of system tests; `make bench` has the figure."""
    record = slot.records[0]
    record.begin(1, 1)
    progress = record.writer(1).progress
    best = math.inf
    for _ in range(5):
        started = time.thread_time()
        for n in range(10_000):
            progress(n, 10_000, "files", "count", "some text")
        best = min(best, (time.thread_time() - started) / 10_000)

    assert best < 5e-6

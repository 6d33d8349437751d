"""Live lines: what they show, what of it fits, and that nothing steers the terminal."""

import io
import re
import types
from typing import Any

import pytest
from rich.console import Console

from taskgate.cli.bars import Bars
from taskgate.cli.meters import Meter, Meters
from taskgate.cli.watching import Board, Lines
from taskgate.cli.words import describe, size, span
from taskgate.client import Progress, Task
from tests.cli.conftest import TASK_ID, Receiver, hang_up, stream
from tests.cli.test_commands import FAILED, HALF, RUNNING, SUCCEEDED, SUCCESS, TASK, on_a_terminal

FIFTY: Progress = {
    "current": 50,
    "total": 100,
    "percent": 50,
    "unit": "pages",
    "stage": "rendering",
    "message": "p. 50",
}
EFFORT: dict[str, Any] = {"cpu_ms": 1000, "rss_bytes": 300 << 20}
BUSY: Task = {
    **RUNNING,
    "version": 5,
    "health": "computing",
    "progress": FIFTY,
    "estimate": {"starts_in_ms": None, "remaining_ms": 75_000, "basis": "progress"},
    "effort": EFFORT,
}


def drawn(*tasks: Task, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    bars = Bars(console)
    for task in tasks:
        bars.show(task)
    with console.capture() as captured:
        console.print(bars.table())
    return captured.get().splitlines()


def test_a_wide_line_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.0, 102.0, 102.0, 200.0, 200.0])
    monkeypatch.setattr("taskgate.cli.meters.monotonic", lambda: next(clock))
    later: Task = {**BUSY, "progress": {**FIFTY, "current": 70, "percent": 70}, "effort": {"cpu_ms": 2900}}
    [line] = drawn(BUSY, later, width=160)
    shown = " ".join(re.sub("[━╸╺]+", " ", line).split())
    words = "70 % running · 70/100 pages · rendering · p. 50"
    assert shown == f"demo.echo 456789ab {words} 10 pages/s about 1 min 15 s left computing 95 %"
    assert " 300 MiB" in drawn(BUSY, width=160)[0]


def test_memory_that_tasks_share_is_marked() -> None:
    assert "~300 MiB" in drawn({**BUSY, "effort": {**EFFORT, "shared": True}}, width=160)[0]


@pytest.mark.parametrize("width", [160, 120, 100, 80, 60, 40, 20])
def test_every_width_has_a_line_for_each_task(width: int) -> None:
    long: Task = {**BUSY, "type": "x" * 64, "progress": {**FIFTY, "message": "m" * 500}}
    lines = drawn(SUCCEEDED, {**long, "id": TASK_ID[:-1] + "c"}, width=width)
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    assert lines[0].count("456789ac" if width >= 40 else "4567") == 1, "what has not ended stands first"


def test_a_message_is_text() -> None:
    evil: Task = {**BUSY, "type": "[red]t\x1b[2J", "progress": {"percent": 1, "message": "\x1b]0;x\x07[bold]"}}
    [line] = drawn(evil, width=160)
    assert "[red]t" in line
    assert "[bold]" in line
    assert not any(char in line for char in "\x1b\x07")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (
            {**TASK, "queue_position": 3, "estimate": {"starts_in_ms": 4_400}},
            "queued · 3 before it · starts in about 4 s",
        ),
        ({**TASK, "stage": "waiting for a worker"}, "queued · waiting for a worker"),
        ({**RUNNING, "attempt": 2, "health": "stalled"}, "running · attempt 2 · stalled"),
        ({**RUNNING, "health": "computing", "estimate": {"remaining_ms": 1_000}}, "running · about 1 s left"),
        (FAILED, "failed · attempt 3 · exception: boom"),
    ],
)
def test_a_task_in_words(task: Task, words: str) -> None:
    assert describe(task) == words


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        ({"current": 12_345_678, "total": 246_913_560, "unit": "bytes"}, "12 MiB/235 MiB"),
        ({"current": 12_345_678, "total": 246_913_560, "unit": "rows"}, "12,345,678/246,913,560 rows"),
        ({"current": 0, "total": 10}, "0/10"),
        ({"current": 0.5, "unit": "h"}, "0.5 h"),
        ({"current": 1_234_567.8901}, "1,234,567.89"),
        ({"current": 1e18}, "1e+18"),
        ({"current": -20.0}, "-20"),
    ],
)
def test_how_far_it_is_in_whole_numbers(progress: Progress, words: str) -> None:
    assert describe({**RUNNING, "progress": progress}) == f"running · {words}"


def test_plain_lines_tell_bad_health_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for health in ("computing", "waiting", "stalled", "stalled", "computing"):
        lines.show({**RUNNING, "health": health})
    said = capsys.readouterr().out.splitlines()
    assert [line.partition("demo.echo  ")[2] for line in said] == ["running", "running · stalled", "running"]


def test_numbers_that_were_asked_for_stay_until_something_newer_is_told() -> None:
    shown: list[Any] = []
    view = types.SimpleNamespace(show=shown.append)
    board = Board([TASK_ID], view)
    board.told({**BUSY, "version": 5})
    board.asked({**BUSY, "version": 4, "effort": {"cpu_ms": 1500}, "progress": None})
    board.told({**BUSY, "version": 6, "progress": HALF})
    board.told({**BUSY, "version": 7, "health": "stalled", "effort": {"cpu_ms": 1600}})
    board.asked({**BUSY, "status": "queued", "effort": {"cpu_ms": 1}})
    assert [task["effort"]["cpu_ms"] for task in shown] == [1000, 1500, 1500, 1600]
    assert [task["version"] for task in shown] == [5, 5, 6, 7]
    assert [task["progress"]["current"] for task in shown] == [50, 50, 5, 50]


def test_a_rate_is_that_of_the_last_seconds() -> None:
    meter = Meter()
    assert meter.per_s() is None
    for second in range(60):
        meter.note(float(second if second < 30 else 30 + (second - 30) * 5), float(second))
    assert meter.per_s() == 5
    for second in range(60, 80):
        meter.note(175.0, float(second))
    assert meter.per_s() == 0
    meter.note(0.0, 81.0)
    assert meter.per_s() is None, "another attempt"


@pytest.mark.parametrize(
    ("steps", "words"), [(0, ""), (0.25, "0.25 pages/s"), (99.96, "100 pages/s"), (1_012, "1,012 pages/s")]
)
def test_rates(monkeypatch: pytest.MonkeyPatch, steps: float, words: str) -> None:
    clock = iter([0.0, 1.0])
    monkeypatch.setattr("taskgate.cli.meters.monotonic", lambda: next(clock))
    meters = Meters()
    for current in (0, steps):
        meters.note({"progress": {"current": current, "unit": "pages"}})
    assert meters.rate({"progress": {"unit": "pages"}}) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (75, "1 min 15 s"),
        (3600, "1 h"),
        (3_660, "1 h 1 min"),
        (90_061, "1 d 1 h"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert span(seconds) == words


@pytest.mark.parametrize(("count", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (300 << 20, "300 MiB")])
def test_sizes(count: int, words: str) -> None:
    assert size(count) == words


def test_a_narrow_terminal_without_colours(receiver: Receiver) -> None:
    receiver.answers.append(stream(SUCCESS))
    receiver.numbers = hang_up
    code, shown = on_a_terminal("watch", TASK_ID, "--url", receiver.url, COLUMNS="40")
    assert code == 0
    assert "456789ab" in shown
    assert "100 % succeeded" in shown
    assert not re.search(r"\x1b\[[0-9;]*m", shown), "NO_COLOR"


def test_a_terminal_that_cannot_draw_gets_plain_lines(receiver: Receiver) -> None:
    receiver.answers.append(stream(SUCCESS))
    code, shown = on_a_terminal("watch", TASK_ID, "--url", receiver.url, TERM="dumb")
    assert code == 0
    assert shown.splitlines()[-1] == f"{TASK_ID}  demo.echo  succeeded"
    assert "\x1b" not in shown

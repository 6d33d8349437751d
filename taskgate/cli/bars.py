"""Watched tasks on a terminal: a live line each, as much of it as fits."""

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from taskgate.cli.meters import Meters
from taskgate.cli.text import plain
from taskgate.cli.words import describe, left, percent_of, size
from taskgate.client import FINAL, Task

_WIDE, _MIDDLE = 120, 80
"""Columns from which on there is room for all numbers, and for the bar."""
_NUMBERS = 5


class Bars:
    """A line per task, redrawn four times a second; what has not ended stands first."""

    numbers = True

    def __init__(self, console: Console) -> None:
        self._tasks: dict[str, Task] = {}
        self._meters: dict[str, Meters] = {}
        self._console = console
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=4)

    def __enter__(self) -> "Bars":
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, task: Task) -> None:
        self._tasks[task["id"]] = task
        self._meters.setdefault(task["id"], Meters()).note(task)

    def table(self) -> Table:
        width = self._console.width
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True)
        if width >= _MIDDLE:
            table.add_column(width=24 if width >= _WIDE else 12)
        table.add_column(no_wrap=True, justify="right", width=5)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for _ in range(_NUMBERS if width >= _WIDE else 0):
            table.add_column(no_wrap=True)
        for task in sorted(self._tasks.values(), key=lambda task: task.get("status") in FINAL):
            table.add_row(*self._row(task, width))
        return table

    def _row(self, task: Task, width: int) -> list[Text | ProgressBar]:
        percent = percent_of(task)
        name = task["id"][-8:]
        if width >= _MIDDLE:
            name = f"{_cut(plain(task.get('type', '?')), width // 4 - 9)} {name}"
        words = describe(task, brief=width >= _WIDE)
        row: list[Text | ProgressBar] = [Text(name)]
        if width >= _MIDDLE:
            row.append(_bar(task, percent))
        row += [Text("" if percent is None else f"{percent:.0f} %"), Text(words)]
        return row + [Text(number) for number in self._numbers(task)] if width >= _WIDE else row

    def _numbers(self, task: Task) -> tuple[str, ...]:
        if task.get("status") not in ("running", "canceling"):
            return ("",) * _NUMBERS
        meters = self._meters[task["id"]]
        effort = task.get("effort") or {}
        memory = effort.get("rss_bytes")
        about = "~" if effort.get("shared") else ""  # that of all tasks on its event loop
        return (
            meters.rate(task),
            left(task),
            plain(task.get("health") or ""),
            meters.cpu(),
            "" if memory is None else about + size(memory),
        )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _bar(task: Task, percent: float | None) -> ProgressBar:
    """Full or as far as it is; moving to and fro when nobody knows how far that is."""
    runs = percent is None and task.get("status") == "running"
    return ProgressBar(total=None if runs else 100, completed=percent or 0, pulse=runs)

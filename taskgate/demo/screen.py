"""How the demo looks: bars that move on a terminal, plain lines elsewhere."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from taskgate.demo.board import Board, Row
from taskgate.demo.expectations import Expectations

_COLOURS = {"running": "cyan", "succeeded": "green", "failed": "red", "canceled": "yellow", "expired": "yellow"}
_FRAMES_PER_S = 8
_PLAIN_WIDTH = 110


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads any more: the demo goes on in silence to its exit code."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Screen:
    """Shows a board until the demo is over, and says what is being done to it."""

    def __init__(self, board: Board, *, plain: bool) -> None:
        self._console = _Console(highlight=False)
        self._board = board
        self._plain = plain or not self._console.is_terminal or self._console.is_dumb_terminal
        if self._plain:
            self._console.width = max(self._console.width, _PLAIN_WIDTH)
        self._said: dict[str, tuple[str, int, int]] = {}

    def say(self, text: str) -> None:
        """One line that stays, above the bars."""
        self._console.print(Text.assemble((f"{self._board.elapsed_s:5.1f} s  ", "dim"), text), soft_wrap=True)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """The bars, drawn for as long as this is entered."""
        if self._plain:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            drawing = asyncio.create_task(self._draw(live))
            try:
                yield
            finally:
                drawing.cancel()
                await asyncio.gather(drawing, return_exceptions=True)

    def changed(self, row: Row) -> None:
        """Without a terminal: a line for every change of status, and every quarter of the work."""
        quarter = int((row.fraction or 0) * 4)
        now = (row.status, row.attempt, quarter)
        if not self._plain or self._said.get(row.id) == now:
            return
        before, self._said[row.id] = self._said.get(row.id), now
        if before is not None and before[:2] == now[:2] and (quarter == 0 or row.final):
            return
        self.say(f"{row.order.name:20} {row.status + _attempt(row):13} {_work(row)}".rstrip())

    def close(self, rows: list[Row]) -> None:
        """The closing table."""
        table = Table(title=f"{len(rows)} tasks", title_justify="left", title_style="bold")
        for heading, style in (("task", "bold"), ("type", ""), ("how it ended", ""), ("attempts", ""), ("time", "")):
            table.add_column(heading, style=style, justify="right" if heading in ("attempts", "time") else "left")
        for row in rows:
            ended = Text(_ended(row), _COLOURS.get(row.status, ""))
            table.add_row(row.order.name, row.order.type, ended, str(row.attempt), f"{row.took_s:.1f} s")
        self._console.print(table)

    def verdict(self, expectations: Expectations) -> None:
        """Every expectation with its mark."""
        lines = Table.grid(padding=(0, 1))
        for one in expectations.seen:
            mark = Text("✓", "green") if one.held else Text("✗", "bold red")
            lines.add_row(mark, Text.assemble(one.text, (f"  {one.detail}" if one.detail else "", "dim")))
        self._console.print(lines)

    async def _draw(self, live: Live) -> None:
        while True:
            live.update(self._frame(), refresh=True)
            await asyncio.sleep(1 / _FRAMES_PER_S)

    def _frame(self) -> Group:
        rows = self._board.rows
        shown = _fitting(rows, self._console.height - 3)
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=20, no_wrap=True)
        table.add_column(width=24)
        table.add_column(width=5, justify="right")
        table.add_column(width=14, no_wrap=True)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for row in shown:
            status = Text(row.status + _attempt(row), _COLOURS.get(row.status, "dim"))
            percent = "" if row.fraction is None else f"{row.fraction:4.0%}"
            table.add_row(row.order.name, _bar(row), percent, status, Text(_doing(row), "dim"))
        done = sum(row.final for row in rows)
        return Group(table, Text(f"{self._board.elapsed_s:5.1f} s  {done} of {len(rows)} tasks ended", "bold"))


def _fitting(rows: list[Row], height: int) -> list[Row]:
    """As many as the terminal is high; what has ended leaves first."""
    too_many = len(rows) - max(height, 1)
    leaving = {row.id for row in sorted(rows, key=lambda row: not row.final)[: max(0, too_many)]}
    return [row for row in rows if row.id not in leaving]


def _bar(row: Row) -> ProgressBar:
    fraction = 1.0 if row.status == "succeeded" else row.fraction
    pulse = fraction is None and row.status == "running"
    return ProgressBar(total=1.0, completed=fraction or 0.0, width=24, pulse=pulse)


def _attempt(row: Row) -> str:
    return f" #{row.attempt}" if row.attempt > 1 else ""


def _work(row: Row) -> str:
    if row.final:
        return _why(row)
    return f"{row.fraction:4.0%}  {_doing(row)}" if row.fraction else ""


def _doing(row: Row) -> str:
    amount = f"{row.current:g}/{row.total:g} {row.unit}" if row.total else ""
    return " · ".join(part for part in (row.stage, amount, row.message) if part)


def _ended(row: Row) -> str:
    return ": ".join(part for part in (row.status, _why(row)) if part)


def _why(row: Row) -> str:
    """Kind and first line of the error that a task failed with."""
    error = (row.task.get("error") if row.status == "failed" else None) or {}
    first_line = str(error.get("message", "")).partition("\n")[0]
    return ", ".join(part for part in (str(error.get("kind", "")), first_line[:60]) if part)

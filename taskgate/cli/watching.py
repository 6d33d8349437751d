"""Following tasks to their ends, shown by one view: live lines, plain lines, JSON, or nothing."""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from typing import Any, Protocol, cast

from taskgate.cli.text import plain, print_json
from taskgate.cli.words import CALM, describe
from taskgate.client import FINAL, AsyncClient, Event, ServiceError, Task
from taskgate.client.following import MAX_TASKS, after

_NUMBERS_S = 1.0
"""How often a live line asks for what no event tells: effort, health, the time left."""


_UNTOLD = frozenset({"effort", "health", "heartbeat_age_ms", "estimate", "queue_position", "stage"})
"""What changes without an event."""


class View(Protocol):
    numbers: bool
    """Whether it shows what no event tells."""

    def show(self, task: Task) -> None: ...


async def follow(client: AsyncClient, task_ids: Sequence[str], view: View) -> list[Task]:
    """Show every change of these tasks until all have ended; returns them as they ended.

    Raises:
        ServiceError: one is not there, or the service was away for longer than the client's patience.
    """
    board = Board(task_ids, view)

    async def states(some: Sequence[str]) -> None:
        async with aclosing(client.watch(*some)) as found:
            async for task in found:
                board.told(task)

    refreshing = asyncio.ensure_future(_refresh(client, board)) if view.numbers else None
    try:
        await asyncio.gather(*map(states, _parts(list(board.tasks))))
    finally:
        if refreshing is not None:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
    return list(board.tasks.values())


async def follow_events(client: AsyncClient, task_ids: Sequence[str]) -> list[Task]:
    """Print every event of these tasks as one line of JSON; returns them as they ended."""
    tasks = {task_id: cast("Task", {"id": task_id}) for task_id in task_ids}

    async def events(some: Sequence[str]) -> None:
        async with aclosing(client.events(*some)) as found:
            async for event in found:
                if event.task_id in tasks:
                    tasks[event.task_id] = after(tasks[event.task_id], event)
                print_event(event)

    await asyncio.gather(*map(events, _parts(list(tasks))))
    return list(tasks.values())


class Board:
    """Tasks as they were told, with the numbers that were asked for since."""

    def __init__(self, task_ids: Sequence[str], view: View) -> None:
        self.tasks = {task_id: cast("Task", {"id": task_id}) for task_id in task_ids}
        self._asked: dict[str, Task] = {}
        self._view = view

    def told(self, task: Task) -> None:
        before = self.tasks[task["id"]]
        self.tasks[task["id"]] = task
        if any(task.get(name) != before.get(name) for name in ("status", "attempt", "health", "stage")):
            self._asked.pop(task["id"], None)  # what was just told is newer
        self._show(task["id"])

    def asked(self, task: Task) -> None:
        """May be older than what was told last; it counts when it is of the same run."""
        known = self.tasks[task["id"]]
        if all(task.get(name) == known.get(name) for name in ("status", "attempt")):
            self._asked[task["id"]] = task
            self._show(task["id"])

    def _show(self, task_id: str) -> None:
        numbers = {name: value for name, value in self._asked.get(task_id, {}).items() if name in _UNTOLD}
        self._view.show(cast("Task", {**self.tasks[task_id], **numbers}))


async def _refresh(client: AsyncClient, board: Board) -> None:
    """Ask for each task as often as the service wants to be asked, and once a second at most."""
    next_at: dict[str, float] = {}
    clock = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(_NUMBERS_S)
        for task_id, known in list(board.tasks.items()):
            if known.get("status") not in FINAL and clock() >= next_at.get(task_id, 0):
                next_at[task_id] = clock() + (known.get("poll_after_ms") or 0) / 1000
                with suppress(ServiceError):  # who follows the task will tell
                    board.asked(await client.get(task_id, fresh=False))


def _parts(task_ids: list[str]) -> Iterable[list[str]]:
    return (task_ids[at : at + MAX_TASKS] for at in range(0, len(task_ids), MAX_TASKS))


def print_event(event: Event) -> None:
    line = {"task_id": event.task_id, "id": event.id, "event": event.name, "data": event.data}
    print_json(line)


class Lines:
    """A line for each change worth one: status, attempt, stage, every tenth of the way, health that is worth a word."""

    numbers = False

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, ...]] = {}

    def show(self, task: Task) -> None:
        progress = {} if task.get("status") in FINAL else task.get("progress") or {}
        tenth = int((progress.get("percent") or 0) // 10)
        health = None if task.get("health") in CALM else task.get("health")
        state = (task.get("status"), task.get("attempt"), task.get("stage"), progress.get("stage"), tenth, health)
        if self._last.get(task["id"]) == state:
            return
        self._last[task["id"]] = state
        shown = progress.get("percent")
        percent = "" if shown is None else f"{shown:3.0f} %  "
        print(f"{task['id']}  {plain(task.get('type', '?'))}  {percent}{describe(task)}", flush=True)


def view_for_terminal() -> AbstractContextManager[View]:
    """Live lines on a terminal that can draw them again, plain ones elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        from taskgate.cli.bars import Bars

        console = Console(file=sys.stdout)
        if not console.is_dumb_terminal:
            return Bars(console)
    return nullcontext(Lines())

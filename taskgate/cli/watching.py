"""Following tasks to their ends, shown by one view: live lines, plain lines, JSON, or nothing."""

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from typing import Any, Protocol, cast

from taskgate.cli.text import plain
from taskgate.cli.words import CALM, describe
from taskgate.client import FINAL, AsyncClient, Event, ServiceError, Task
from taskgate.client.following import MAX_TASKS, after

_NUMBERS_S = 1.0
"""How often a live line asks for what no event tells: effort, health, the time left."""


class View(Protocol):
    def show(self, task: Task) -> None: ...


async def follow(client: AsyncClient, task_ids: Sequence[str], view: View, *, numbers: bool = False) -> list[Task]:
    """Show every change of these tasks until all have ended; returns them as they ended.

    Raises:
        ServiceError: one is not there, or the service was away for longer than the client's patience.
    """
    tasks = {task_id: cast("Task", {"id": task_id}) for task_id in task_ids}

    async def states(some: Sequence[str]) -> None:
        async with aclosing(client.watch(*some)) as found:
            async for task in found:
                tasks[task["id"]] = task
                view.show(task)

    refreshing = asyncio.ensure_future(_refresh(client, tasks, view)) if numbers else None
    try:
        await asyncio.gather(*map(states, _parts(list(tasks))))
    finally:
        if refreshing is not None:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
    return list(tasks.values())


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


async def _refresh(client: AsyncClient, tasks: dict[str, Task], view: View) -> None:
    while True:
        await asyncio.sleep(_NUMBERS_S)
        for task_id in [each["id"] for each in tasks.values() if each.get("status") == "running"]:
            with suppress(ServiceError):  # who follows the task will tell
                fresh = await client.get(task_id, fresh=False)
                known = tasks[task_id]
                if known.get("status") not in FINAL and fresh.get("version", 0) >= known.get("version", 0):
                    tasks[task_id] = fresh
                    view.show(fresh)


def _parts(task_ids: list[str]) -> Iterable[list[str]]:
    return (task_ids[at : at + MAX_TASKS] for at in range(0, len(task_ids), MAX_TASKS))


def print_event(event: Event) -> None:
    line = {"task_id": event.task_id, "id": event.id, "event": event.name, "data": event.data}
    print(json.dumps(line, ensure_ascii=False), flush=True)


class Lines:
    """A line for each change worth one: status, attempt, stage, every tenth of the way, health that is worth a word."""

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


def is_live() -> bool:
    """Whether there is a terminal on which lines can be drawn again."""
    from rich.console import Console

    return sys.stdout.isatty() and not Console(file=sys.stdout).is_dumb_terminal


def view_for_terminal() -> AbstractContextManager[View]:
    """Live lines on a terminal, plain ones elsewhere."""
    if not is_live():
        return nullcontext(Lines())
    from taskgate.cli.bars import Bars

    return Bars()

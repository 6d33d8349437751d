"""Following tasks to their end: one thread per stream, one view that shows them (bars, lines, JSON, or nothing)."""

import json
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, cast

from taskgate.cli.text import plain
from taskgate.client import FINAL, Client, Event, Progress, ServiceError, Task


class Seen(NamedTuple):
    """Something happened to a task: what, and the task as it is now."""

    task: Task
    event: Event


class View(Protocol):
    def show(self, seen: Seen) -> None: ...


def follow(client: Client, task_ids: Sequence[str], view: View) -> dict[str, Task]:
    """Show everything that happens to these tasks until all have ended; returns them as they ended.

    Raises:
        ServiceError: one of the streams was refused, or broke for longer than the client's patience.
    """
    tasks = {task_id: cast("Task", {"id": task_id}) for task_id in task_ids}
    for task_id, event in _merged(client, list(tasks)):
        tasks[task_id] = after(tasks[task_id], event)
        view.show(Seen(tasks[task_id], event))
    return tasks


def after(task: Task, event: Event) -> Task:
    """The task as an event leaves it."""
    match event.name:
        case "snapshot" | "end":
            return cast("Task", {**task, **event.data})
        case "status":
            fresh = {} if event.data.get("status") == task.get("status") else {"progress": None}
            return cast("Task", {**task, **fresh, **event.data})
        case "progress":
            return {**task, "progress": cast("Progress", event.data)}
    return task


def _merged(client: Client, task_ids: Sequence[str]) -> Iterator[tuple[str, Event]]:
    arrivals: queue.SimpleQueue[tuple[str, Event | ServiceError | None]] = queue.SimpleQueue()

    def read(task_id: str) -> None:
        try:
            for event in client.events(task_id):
                arrivals.put((task_id, event))
            arrivals.put((task_id, None))
        except ServiceError as error:
            arrivals.put((task_id, error))

    for task_id in task_ids:
        threading.Thread(target=read, args=(task_id,), daemon=True).start()
    left = len(task_ids)
    while left:
        task_id, arrival = arrivals.get()
        if arrival is None:
            left -= 1
        elif isinstance(arrival, ServiceError):
            raise arrival
        else:
            yield task_id, arrival


def describe(task: Task) -> str:
    """What a task is doing, in one line."""
    parts = [str(task.get("status", "?"))]
    if task.get("attempt", 0) > 1:
        parts.append(f"attempt {task['attempt']}")
    if task.get("health") not in (None, "computing", "waiting"):
        parts.append(str(task["health"]))
    if task.get("status") not in FINAL:
        parts += _progress_words(task.get("progress") or {})
    error = task.get("error")
    if error:
        parts.append(f"{error.get('kind')}: {error.get('message')}")
    return plain(" · ".join(part for part in parts if part))


def _progress_words(progress: Progress) -> list[str]:
    current, total = progress.get("current"), progress.get("total")
    words = []
    if current is not None:
        words.append(f"{current:g}{f'/{total:g}' if total else ''} {progress.get('unit') or ''}".rstrip())
    return [*words, progress.get("stage") or "", progress.get("message") or ""]


class Quiet:
    def show(self, seen: Seen) -> None:
        pass


class JsonLines:
    """One JSON object per event on stdout."""

    def show(self, seen: Seen) -> None:
        line = {"task_id": seen.task["id"], "id": seen.event.id, "event": seen.event.name, "data": seen.event.data}
        print(json.dumps(line, ensure_ascii=False), flush=True)


class Lines:
    """A line for each change worth one: status, attempt, stage, every tenth of the way."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, ...]] = {}

    def show(self, seen: Seen) -> None:
        task = seen.task
        progress = {} if task.get("status") in FINAL else task.get("progress") or {}
        tenth = int((progress.get("percent") or 0) // 10)
        state = (task.get("status"), task.get("attempt"), progress.get("stage"), tenth)
        if self._last.get(task["id"]) == state:
            return
        self._last[task["id"]] = state
        shown = progress.get("percent")
        percent = "" if shown is None else f"{shown:3.0f} %  "
        print(f"{task['id']}  {plain(task.get('type', '?'))}  {percent}{describe(task)}", flush=True)


class Bars:
    """A live bar per task, for a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.fields[name]}", markup=False),
            BarColumn(24),
            TextColumn("{task.fields[percent]}", markup=False),
            TextColumn("{task.fields[words]}", markup=False),
            console=Console(file=sys.stdout),
        )
        self._rows: dict[str, Any] = {}

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def show(self, seen: Seen) -> None:
        task = seen.task
        if task["id"] not in self._rows:
            name = f"{plain(task.get('type', '?'))} {task['id'][-8:]}"
            self._rows[task["id"]] = self._progress.add_task("", total=None, name=name, percent="", words="")
        percent = 100.0 if task.get("status") == "succeeded" else (task.get("progress") or {}).get("percent")
        unknown = percent is None and task.get("status") not in FINAL
        self._progress.update(
            self._rows[task["id"]],
            total=None if unknown else 100,
            completed=percent or 0,
            percent="" if percent is None else f"{percent:3.0f} %",
            words=describe(task),
        )


def view_for_terminal() -> AbstractContextManager[View]:
    """Bars on a terminal, plain lines elsewhere."""
    return Bars() if sys.stdout.isatty() else nullcontext(Lines())

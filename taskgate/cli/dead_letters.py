"""Client commands about dead letters: list them, look into one, redrive or delete many."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.lists import attempts_of, pages_of, print_table
from taskgate.cli.options import AsJson, TaskId, patience_s, say
from taskgate.cli.text import ExitCode, fail, note, plain, print_json

if TYPE_CHECKING:
    from taskgate.client import Client, Letter, LetterFilters, Redriven, Task

Queue = Annotated[str | None, typer.Option(help="only of that queue")]
Type = Annotated[str | None, typer.Option("--type", help="only of that task type")]
Kind = Annotated[str | None, typer.Option(help="only with that kind of error: exception, timeout, crash, lost, …")]
After = Annotated[str | None, typer.Option(metavar="TIME", help="only ended then or later (RFC 3339)")]
Before = Annotated[str | None, typer.Option(metavar="TIME", help="only ended before then")]

_A_REQUEST = 1_000
"""So many one request may name."""


def dead_letters(
    ctx: typer.Context,
    queue: Queue = None,
    task_type: Type = None,
    kind: Kind = None,
    after: After = None,
    before: Before = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many, newest first")] = 50,
    as_json: AsJson = False,
) -> None:
    """List failed tasks, those that ended last first.

    They are kept until they are redriven or purged, or until TASKGATE_DEAD_RETENTION_S is over.

    Examples:

      taskgate dead-letters --kind timeout --limit 10

      taskgate dead-letters --queue reports --json | jq -r '.[].error.message'
    """
    client: Client = ctx.obj
    filters = _filters(queue, task_type, kind, after, before)
    items = pages_of(lambda count, cursor: client.dead_letters(limit=count, cursor=cursor, **filters), limit)
    if as_json:
        print_json(items)
        return
    rows = []
    for task in items:
        error = task.get("error") or {}
        why = f"{error.get('kind')}: {error.get('message')}"
        rows.append((task["id"], task.get("type", ""), attempts_of(task), task.get("finished_at") or "", why))
    print_table(("ID", "TYPE", "ATTEMPT", "FINISHED", "ERROR"), rows)


def dead_letter(ctx: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Show a failed task with the history of its attempts.

    When and where each ran, what came of it, how much memory it took; those of before a redrive, too.

    Examples:

      taskgate dead-letter 0193c0de-7a3e-7b1c-9d2f-0123456789ab

      taskgate dead-letter $ID --json | jq -r '.attempts[].error.traceback'
    """
    from taskgate.cli.history import lines

    client: Client = ctx.obj
    letter: Letter = client.dead_letter(task_id)
    if as_json:
        print_json(letter)
        return
    for line in lines(letter):
        print(plain(line).rstrip())


def redrive(
    ctx: typer.Context,
    task_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="task ids; or filters, or --all", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="all of yours")] = False,
    queue: Queue = None,
    task_type: Type = None,
    kind: Kind = None,
    after: After = None,
    before: Before = None,
    rate: Annotated[
        float | None, typer.Option(min=0.01, max=100_000, metavar="PER_S", help="so many start per second")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="at most so many of those that fit, oldest first")] = None,
    as_json: AsJson = False,
) -> None:
    """Give dead letters (failed tasks) new attempts.

    What fails again meanwhile is left alone. Where a queue is full, the rest waits for room, until for `--retry-for`
    seconds none has found any. With filters or --all, --rate or --limit ends it when an answer is lost; what was
    redriven stays so.

    Examples:

      taskgate redrive 0193c0de-7a3e-7b1c-9d2f-0123456789ab

      taskgate redrive --kind timeout --after 2026-01-31T00:00:00Z --rate 10
    """
    client: Client = ctx.obj
    filters = _filters(queue, task_type, kind, after, before)
    _check_choice(bool(task_ids), bool(filters), everything)
    if task_ids and limit is not None:
        raise typer.BadParameter("--limit goes with filters or --all")
    if task_ids and len(task_ids) == 1 and rate is None:
        task = _redrive_one(client, task_ids[0], patience_s(ctx))
        print_json(task) if as_json else print(task["status"])
        return
    if task_ids:
        found = _redrive_ids(client, task_ids, rate, patience_s(ctx))
    else:
        with _bar("redriven") as show:
            found = _redrive_all(client, filters, rate, limit, patience_s(ctx), show)
    print_json(found) if as_json else print(", ".join(f"{count} {what}" for what, count in found.items() if count) or 0)
    if found["refused"]:
        raise typer.Exit(ExitCode.REFUSED)


def purge(
    ctx: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="all of yours")] = False,
    queue: Queue = None,
    task_type: Type = None,
    kind: Kind = None,
    after: After = None,
    before: Before = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters for good, with their payloads, events and output.

    Examples:

      taskgate purge --type report.pdf --before 2026-01-01T00:00:00Z

      taskgate purge --all --yes
    """
    client: Client = ctx.obj
    filters = _filters(queue, task_type, kind, after, before)
    _check_choice(False, bool(filters), everything)
    if not yes:
        _ask(filters)
    with _bar("deleted") as show:
        answer = client.purge_letters(everything=everything, **filters)
        deleted = answer.deleted
        while answer.next_cursor is not None:
            show(deleted, answer.remaining)
            answer = client.purge_letters(everything=everything, cursor=answer.next_cursor, **filters)
            deleted += answer.deleted
    print_json({"deleted": deleted}) if as_json else print(f"{deleted} deleted")


def _filters(
    queue: str | None, task_type: str | None, kind: str | None, after: str | None, before: str | None
) -> "LetterFilters":
    given: Any = {"queue": queue, "type": task_type, "kind": kind, "after": after, "before": before}
    filters: LetterFilters = {name: value for name, value in given.items() if value is not None}  # type: ignore[assignment]
    return filters


def _check_choice(ids: bool, filters: bool, everything: bool) -> None:
    if ids + filters + everything != 1:
        raise typer.BadParameter("say which: task ids, filters or --all" if ids else "say which: filters or --all")


def _ask(filters: "LetterFilters") -> None:
    which = " ".join(f"{name}={value}" for name, value in filters.items()) or "all"
    if not sys.stdin.isatty():
        fail("nobody can be asked here: say --yes", ExitCode.USAGE)
    typer.confirm(f"Delete dead letters for good ({which})?", abort=True, err=True)


def _redrive_one(client: "Client", task_id: str, seconds: float) -> "Task":
    from taskgate.client import TooMany
    from taskgate.client.patience import Patience

    patience = Patience(seconds)
    while True:
        try:
            return client.redrive(task_id)
        except TooMany as error:  # which has changed nothing
            delay_s = patience.delay_s(error)
            say(error, delay_s)
            time.sleep(delay_s)


def _redrive_ids(client: "Client", task_ids: list[str], rate: float | None, patience: float) -> dict[str, int]:
    """`refused`: what had found no room when patience was over; each is named."""
    found = {"redriven": 0, "refused": 0, "skipped": 0}
    start_at: str | None = None
    moved_at = time.monotonic()
    while True:
        left: list[str] = []
        for first in range(0, len(task_ids), _A_REQUEST):
            answer = client.redrive_letters(task_ids[first : first + _A_REQUEST], rate_per_s=rate, start_at=start_at)
            found["redriven"] += answer.redriven
            found["skipped"] += answer.skipped
            start_at = answer.next_start_at
            left += answer.refused_ids
            if answer.refused:
                full = answer
            if answer.redriven:
                moved_at = time.monotonic()
        if not left:
            return found
        if not _pause(full, moved_at + patience):
            for task_id in left:
                note(f"taskgate: refused: {task_id}")
            return found | {"refused": len(left)}
        task_ids = left


def _redrive_all(
    client: "Client",
    filters: "LetterFilters",
    rate: float | None,
    limit: int | None,
    patience: float,
    show: Callable[[int, int], None],
) -> dict[str, int]:
    """`refused`: what had found no room when patience was over."""
    found = {"redriven": 0, "refused": 0, "skipped": 0}
    cursor: str | None = None
    moved_at = time.monotonic()
    while True:
        left = None if limit is None else limit - found["redriven"]
        answer = client.redrive_letters(
            everything=not filters,
            limit=left and min(left, _A_REQUEST),
            rate_per_s=rate,
            cursor=cursor,
            **filters,
        )
        found["redriven"] += answer.redriven
        found["skipped"] += answer.skipped
        cursor = answer.next_cursor
        if cursor is None or found["redriven"] == limit:
            return found
        show(found["redriven"], answer.remaining)
        if answer.redriven:
            moved_at = time.monotonic()
        elif answer.retry_after_s is not None and not _pause(answer, moved_at + patience):
            return found | {"refused": answer.remaining}


def _pause(answer: "Redriven", until: float) -> bool:
    """Wait for room; False: there would be none in time."""
    wait_s = answer.retry_after_s or 1
    if time.monotonic() + wait_s > until:
        note(f"taskgate: no room ({answer.limit}); try again in {wait_s} s")
        return False
    note(f"taskgate: no room ({answer.limit}); trying again in {wait_s} s")
    time.sleep(wait_s)
    return True


@contextlib.contextmanager
def _bar(word: str) -> Iterator[Callable[[int, int], None]]:
    """On a terminal a bar, which is told how many are done and how many are left; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda done, left: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(word, total=None)
        yield lambda done, left: progress.update(bar, completed=done, total=done + left)

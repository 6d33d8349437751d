"""Client commands that list: tasks, workers, dead letters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.options import AsJson
from taskgate.cli.text import plain, print_json

if TYPE_CHECKING:
    from taskgate.client import Client, Task


def list_tasks(
    ctx: typer.Context,
    status: Annotated[str | None, typer.Option(help="only of that status")] = None,
    task_type: Annotated[str | None, typer.Option("--type", help="only of that task type")] = None,
    queue: Annotated[str | None, typer.Option(help="only of that queue")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="only with that in their metadata; may be repeated")
    ] = None,
    after: Annotated[str | None, typer.Option(metavar="TIME", help="only created after then (RFC 3339)")] = None,
    before: Annotated[str | None, typer.Option(metavar="TIME", help="only created before then")] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many")] = 50,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first.

    Examples:

      taskgate list --status failed --type report.pdf

      taskgate list --metadata customer=42 --after 2026-01-31T00:00:00Z --json | jq -r '.[].id'
    """
    filters: Any = {
        "status": status,
        "type": task_type,
        "queue": queue,
        "metadata": dict(map(_pair, metadata or [])) or None,
        "created_after": after,
        "created_before": before,
    }
    found = _pages(ctx.obj, limit, {name: value for name, value in filters.items() if value is not None})
    if as_json:
        print_json(found)
        return
    rows = [
        (task["id"], task.get("type", ""), task.get("status", ""), _times(task), task.get("created_at") or "")
        for task in found
    ]
    print_table(("ID", "TYPE", "STATUS", "ATTEMPT", "CREATED"), rows)


def _pages(client: "Client", limit: int, filters: Any) -> "list[Task]":
    """The first `limit` tasks, over as many pages as that takes: each looks at so many tasks only."""
    found: list[Task] = []
    cursor: str | None = None
    while True:
        page = client.list(limit=min(200, limit - len(found)), cursor=cursor, **filters)
        found += page.items
        cursor = page.next_cursor
        if cursor is None or len(found) >= limit:
            return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"not KEY=VALUE: {text!r}")
    return name, value


def _times(task: "Task") -> str:
    return f"{task.get('attempt', '?')}/{task.get('max_attempts', '?')}"


def workers(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the supervisors and their children.

    Examples:

      taskgate workers

      taskgate workers --json | jq '.[].children'
    """
    client: Client = ctx.obj
    items = client.workers()
    if as_json:
        print_json(items)
        return
    print_table(
        ("WORKER", "STATE", "WHOLE", "CHILDREN", "BUSY", "GUARD", "QUEUES"), [_worker_row(one) for one in items]
    )


def _worker_row(worker: dict[str, Any]) -> tuple[str, ...]:
    children = worker.get("children") or []
    busy = sum(1 for child in children if child.get("tasks"))
    return (
        str(worker.get("id")),
        str(worker.get("state")) if worker.get("alive", True) else "silent",
        "yes" if worker.get("whole") else "no",
        str(len(children)),
        str(busy),
        str(worker.get("guard")),
        ",".join(worker.get("queues") or []),
    )


def dead_letters(
    ctx: typer.Context,
    queue: Annotated[str, typer.Option(help="queue to look at")] = "default",
    limit: Annotated[int, typer.Option(min=1, max=200, help="at most so many, newest first")] = 50,
    as_json: AsJson = False,
) -> None:
    """List failed tasks.

    They are kept until they are redriven, or purged after TASKGATE_DEAD_RETENTION_S.

    Examples:

      taskgate dead-letters --limit 10

      taskgate dead-letters --queue reports --json | jq -r '.[].error.message'
    """
    client: Client = ctx.obj
    items = client.dead_letters(queue=queue, limit=limit)
    if as_json:
        print_json(items)
        return
    rows = []
    for task in items:
        error = task.get("error") or {}
        why = f"{error.get('kind')}: {error.get('message')}"
        rows.append((task["id"], task.get("type", ""), _times(task), task.get("finished_at") or "", why))
    print_table(("ID", "TYPE", "ATTEMPT", "FINISHED", "ERROR"), rows)


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as needed, two spaces between: as good for `awk` as for eyes."""
    lines = [head, *[tuple(plain(cell) or "-" for cell in row) for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())

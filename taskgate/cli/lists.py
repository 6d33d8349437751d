"""Client commands that list: tasks, workers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.options import AsJson
from taskgate.cli.text import plain, print_json

if TYPE_CHECKING:
    from taskgate.client import Client, Task, TaskPage


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
    given = {
        "status": status,
        "type": task_type,
        "queue": queue,
        "metadata": dict(map(_pair, metadata or [])) or None,
        "created_after": after,
        "created_before": before,
    }
    filters: Any = {name: value for name, value in given.items() if value is not None}
    client: Client = ctx.obj
    found = pages_of(lambda count, cursor: client.list(limit=count, cursor=cursor, **filters), limit)
    if as_json:
        print_json(found)
        return
    rows = [
        (task["id"], task.get("type", ""), task.get("status", ""), attempts_of(task), task.get("created_at") or "")
        for task in found
    ]
    print_table(("ID", "TYPE", "STATUS", "ATTEMPT", "CREATED"), rows)


def pages_of(turn: "Callable[[int, str | None], TaskPage]", limit: int) -> "list[Task]":
    """The first `limit` tasks, over as many pages as that takes: each looks at so many tasks only."""
    found: list[Task] = []
    cursor: str | None = None
    while True:
        page = turn(min(200, limit - len(found)), cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None or len(found) >= limit:
            return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"not KEY=VALUE: {text!r}")
    return name, value


def attempts_of(task: "Task") -> str:
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
    told = all("tasks" in child for child in children)  # where tenants share the service, it is not
    busy = str(sum(1 for child in children if child["tasks"])) if told else "?"
    return (
        str(worker.get("id")),
        str(worker.get("state")) if worker.get("alive", True) else "silent",
        "yes" if worker.get("whole") else "no",
        str(len(children)),
        busy,
        str(worker.get("guard")),
        ",".join(worker.get("queues") or []),
    )


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as needed, two spaces between: as good for `awk` as for eyes."""
    lines = [head, *[tuple(plain(cell) or "-" for cell in row) for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())

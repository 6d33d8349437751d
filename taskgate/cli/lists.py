"""Client commands that list: workers, dead letters."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.text import plain

if TYPE_CHECKING:
    from taskgate.client import Client

AsJson = Annotated[bool, typer.Option("--json", help="print JSON as the service sent it")]


def workers(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the supervisors and their children.

    Examples:

      taskgate workers

      taskgate workers --json | jq '.[].children'
    """
    client: Client = ctx.obj
    items = client.workers()
    if as_json:
        print(json.dumps(items, ensure_ascii=False))
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
        print(json.dumps(items, ensure_ascii=False))
        return
    rows = []
    for task in items:
        error = task.get("error") or {}
        times = f"{task.get('attempt', '?')}/{task.get('max_attempts', '?')}"
        why = f"{error.get('kind')}: {error.get('message')}"
        rows.append((task["id"], task.get("type", ""), times, task.get("finished_at") or "", why))
    print_table(("ID", "TYPE", "ATTEMPT", "FINISHED", "ERROR"), rows)


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as needed, two spaces between: as good for `awk` as for eyes."""
    lines = [head, *[tuple(plain(cell) or "-" for cell in row) for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())

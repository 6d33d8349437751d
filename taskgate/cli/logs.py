"""`taskgate logs`: what a task printed and logged."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.options import TaskId
from taskgate.cli.text import note, print_json

if TYPE_CHECKING:
    from taskgate.client import Client

_STAY = "\n\t"


def logs(
    ctx: typer.Context,
    task_id: TaskId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the task has ended")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="an object a line, with its time, stream and attempt")
    ] = False,
) -> None:
    """Show what a task printed and logged: the newest 256 KiB, of all its attempts.

    Examples:

      taskgate logs 0193c0de-7a3e-7b1c-9d2f-0123456789ab --follow

      taskgate logs ID --json | jq -r 'select(.stream == "stderr").text'
    """
    show = print_json if as_json else _print_text
    last = ""
    for entry in _kept(ctx.obj, task_id):
        show(entry)
        last = entry["id"]
    if follow:
        for entry in _coming(ctx.obj, task_id, last):
            show(entry)


def _kept(client: "Client", task_id: str) -> Iterator[dict[str, Any]]:
    after: str | None = None
    while True:
        page = client.logs(task_id, after=after)
        if after is None and page.truncated:
            note(f"taskgate: {page.dropped_bytes} bytes of its output were dropped")
        yield from map(dict, page.items)
        after = page.next
        if after is None:
            return


def _coming(client: "Client", task_id: str, last: str) -> Iterator[dict[str, Any]]:
    for event in client.events(task_id, last_event_id=last):
        if event.name == "log":
            yield {"id": event.id, **event.content()}
        elif event.name == "gap":
            note("taskgate: some of its output may be missing here")


def _print_text(entry: dict[str, Any]) -> None:
    """As it was printed, but for what could steer a terminal."""
    if lost := entry.get("dropped_bytes"):
        note(f"taskgate: {lost} bytes of its output are missing here")
    text = str(entry.get("text", ""))
    if sys.stdout.isatty():
        text = "".join(char if char.isprintable() or char in _STAY else " " for char in text)
    sys.stdout.write(text)
    sys.stdout.flush()

"""Client commands about single tasks: submit, watch, status, cancel, redrive."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.text import ExitCode, note, plain

if TYPE_CHECKING:
    from taskgate.cli.watching import View
    from taskgate.client import Client, Task

TaskId = Annotated[str, typer.Argument(metavar="ID", help="task id, as `submit` printed it")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON as the service sent it")]


def submit(
    ctx: typer.Context,
    task_type: Annotated[str, typer.Argument(metavar="TYPE", help="task type")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="payload: JSON, @FILE, or - for standard input")],
    watch: Annotated[bool, typer.Option("--watch", help="show it live until it ends, then print its result")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="wait quietly until it ends, then print its result")] = False,
    queue: Annotated[str | None, typer.Option(help="queue, instead of its type's own")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="higher goes first (default 5)")] = None,
    delay_s: Annotated[float | None, typer.Option(min=0, help="start that many seconds from now")] = None,
    run_at: Annotated[str | None, typer.Option(help="start at that time (RFC 3339), instead of --delay-s")] = None,
    deadline_s: Annotated[float | None, typer.Option(min=0, help="give up if not started by then")] = None,
    timeout_s: Annotated[float | None, typer.Option(min=0, help="bound of one attempt")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, help="attempts until it is a dead letter")] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="object of your own to keep with it")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="same key, same task; made up when not given")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a task and print its id.

    Sent again with the same Idempotency-Key when the answer is lost or the queue is full, for `--retry-for` seconds.

    Examples:

      taskgate submit demo.echo '{"text": "hello"}'

      taskgate submit demo.census @request.json --watch

      echo '{}' | taskgate submit demo.noop - --wait
    """
    from taskgate.cli.payload import read_json, read_object
    from taskgate.cli.watching import Quiet, view_for_terminal

    client: Client = ctx.obj
    if watch and wait:
        raise typer.BadParameter("--watch and --wait exclude each other")
    options: Any = {
        "queue": queue,
        "priority": priority,
        "delay_s": delay_s,
        "run_at": run_at,
        "deadline_s": deadline_s,
        "timeout_s": timeout_s,
        "max_attempts": max_attempts,
        "metadata": read_object(metadata),
    }
    options = {name: value for name, value in options.items() if value is not None}
    task = client.submit(task_type, read_json(payload), idempotency_key=idempotency_key, options=options)
    if watch or wait:
        note(f"submitted {task['id']}")
        _see_through(client, task["id"], view_for_terminal() if watch else nullcontext(Quiet()))
    else:
        _print_json(task) if as_json else print(task["id"])


def _see_through(client: "Client", task_id: str, view: "AbstractContextManager[View]") -> None:
    from taskgate.cli.watching import describe, follow

    with view as shown:
        task = follow(client, [task_id], shown)[task_id]
    if task.get("status") != "succeeded":
        note(f"taskgate: {describe(task)}")
        raise typer.Exit(ExitCode.ENDED_OTHERWISE)
    sys.stdout.buffer.write(client.result(task_id) + b"\n")


def watch(
    ctx: typer.Context,
    task_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="task ids")],
    as_json: Annotated[bool, typer.Option("--json", help="print each event as one line of JSON")] = False,
) -> None:
    """Show tasks live until they have ended.

    Bars on a terminal, plain lines elsewhere; a broken connection is taken up where it broke.
    Exit code 1 when one of them did not succeed.

    Examples:

      taskgate watch 0193c0de-7a3e-7b1c-9d2f-0123456789ab

      taskgate watch $A $B $C --json | jq .data.percent
    """
    from taskgate.cli.watching import JsonLines, follow, view_for_terminal

    with nullcontext(JsonLines()) if as_json else view_for_terminal() as view:
        ended = follow(ctx.obj, task_ids, view)
    if any(task.get("status") != "succeeded" for task in ended.values()):
        raise typer.Exit(ExitCode.ENDED_OTHERWISE)


def status(ctx: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Show a task as it is now.

    Exit code 1 when it ended without success.

    Examples:

      taskgate status 0193c0de-7a3e-7b1c-9d2f-0123456789ab

      taskgate status $ID --json | jq -r .status
    """
    from taskgate.client import FINAL

    task: Task = ctx.obj.get(task_id)
    _print_json(task) if as_json else _print_fields(task)
    if task["status"] in FINAL - {"succeeded"}:
        raise typer.Exit(ExitCode.ENDED_OTHERWISE)


def cancel(ctx: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Cancel a task.

    At once while it waits (`canceled`), else as soon as its process has really stopped (`canceling`).

    Examples:

      taskgate cancel 0193c0de-7a3e-7b1c-9d2f-0123456789ab
    """
    task: Task = ctx.obj.cancel(task_id)
    _print_json(task) if as_json else print(task["status"])


def redrive(ctx: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Queue a dead letter (a failed task) again.

    Examples:

      taskgate redrive 0193c0de-7a3e-7b1c-9d2f-0123456789ab

      taskgate dead-letters --json | jq -r '.[].id' | xargs -n1 taskgate redrive
    """
    task: Task = ctx.obj.redrive(task_id)
    _print_json(task) if as_json else print(task["status"])


def _print_json(task: "Task") -> None:
    import json

    print(json.dumps(task, ensure_ascii=False))


def _print_fields(task: "Task") -> None:
    import json

    for name, value in task.items():
        if value is None or value == {} or name == "urls":
            continue
        if name == "error" and isinstance(value, dict):
            _print_error(value)
            continue
        print(f"{name:18} {plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))}")


def _print_error(error: dict[str, Any]) -> None:
    print(f"{'error':18} {plain(error.get('kind'))}: {plain(error.get('message'))}")
    for line in str(error.get("traceback") or "").splitlines():
        print(f"{'':18} {plain(line)}")

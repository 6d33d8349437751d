"""Client commands about single tasks: submit, watch, status, cancel, delete."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.options import AsJson, TaskId, client_for_asyncio
from taskgate.cli.text import ExitCode, code_of_ends, note, plain, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskgate.client import Client, Task

TaskIds = Annotated[list[str], typer.Argument(metavar="ID...", help="task ids")]


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
    unique_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="another task with it that has not ended is returned")
    ] = None,
    on_conflict: Annotated[
        str | None, typer.Option(metavar="WHAT", help="instead: replace that one while it waits, or refuse")
    ] = None,
    concurrency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="as many with it run at a time as the type allows")
    ] = None,
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
        "unique_key": unique_key,
        "on_conflict": on_conflict,
        "concurrency_key": concurrency_key,
    }
    options = {name: value for name, value in options.items() if value is not None}
    task = client.submit(task_type, read_json(payload), idempotency_key=idempotency_key, **options)
    if not watch and not wait:
        print_json(task) if as_json else print(task["id"])
        return
    note(f"submitted {task['id']}")
    ended = _shown(ctx, [task["id"]], as_json=as_json)[0] if watch else client.wait(task["id"])
    _print_end(client, ended, as_json=as_json and wait)


def _print_end(client: "Client", task: "Task", *, as_json: bool) -> None:
    """The result on stdout, or how it ended otherwise on stderr; as JSON the task itself, whatever became of it."""
    from taskgate.cli.words import describe

    if as_json:
        print_json(task)
    elif task.get("status") == "succeeded":
        result = client.result_json(task["id"])
        if result is not None:
            sys.stdout.buffer.write(result + b"\n")
    if code := code_of_ends([task]):
        note(f"taskgate: {describe(task)}")
        raise typer.Exit(code)


def watch(
    ctx: typer.Context,
    task_ids: TaskIds,
    as_json: Annotated[bool, typer.Option("--json", help="print each event as one line of JSON")] = False,
) -> None:
    """Show tasks live until they have ended.

    Live lines on a terminal, plain ones elsewhere; a broken connection is taken up where it broke. Ctrl-C ends
    the watching alone. The exit code tells how they ended: that of a failed one, else of a canceled, else of an
    expired one.

    Examples:

      taskgate watch 0193c0de-7a3e-7b1c-9d2f-0123456789ab

      taskgate watch $A $B $C --json | jq .data.percent
    """
    from taskgate.client import FINAL

    tasks = _shown(ctx, task_ids, as_json=as_json)
    gone = [task["id"] for task in tasks if task.get("status") not in FINAL]
    for task_id in gone:
        note(f"taskgate: {task_id} was deleted before its end was seen")
    if code := code_of_ends(tasks) or (ExitCode.NOT_FOUND if gone else ExitCode.OK):
        raise typer.Exit(code)


def _shown(ctx: typer.Context, task_ids: "Sequence[str]", *, as_json: bool) -> "list[Task]":
    """The tasks as they ended."""
    import asyncio

    from taskgate.cli.watching import follow, follow_events, view_for_terminal

    async def until_ended() -> "list[Task]":
        async with client_for_asyncio(ctx) as client:
            if as_json:
                return await follow_events(client, task_ids)
            with view_for_terminal() as view:
                return await follow(client, task_ids, view)

    return asyncio.run(until_ended())


def status(ctx: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Show a task as it is now.

    The exit code tells how it ended, if it has.

    Examples:

      taskgate status 0193c0de-7a3e-7b1c-9d2f-0123456789ab

      taskgate status $ID --json | jq -r .status
    """
    task: Task = ctx.obj.get(task_id)
    print_json(task) if as_json else _print_fields(task)
    if code := code_of_ends([task]):
        raise typer.Exit(code)


def cancel(ctx: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Cancel a task.

    At once while it waits (`canceled`), else as soon as its process has really stopped (`canceling`).

    Examples:

      taskgate cancel 0193c0de-7a3e-7b1c-9d2f-0123456789ab
    """
    task: Task = ctx.obj.cancel(task_id)
    print_json(task) if as_json else print(task["status"])


def delete(ctx: typer.Context, task_ids: TaskIds) -> None:
    """Delete tasks that have ended, with their results, events and logs.

    Examples:

      taskgate delete 0193c0de-7a3e-7b1c-9d2f-0123456789ab

      taskgate list --status succeeded --json | jq -r '.[].id' | xargs -n1 taskgate delete
    """
    for task_id in task_ids:
        ctx.obj.delete(task_id)


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
    for text in (error.get("traceback"), error.get("stack")):
        for line in str(text or "").splitlines():
            print(f"{'':18} {plain(line)}")

"""`taskgate stack`: where a running task is."""

from typing import TYPE_CHECKING

import typer

from taskgate.cli.options import AsJson, TaskId
from taskgate.cli.text import ExitCode, note, plain, print_json

if TYPE_CHECKING:
    from taskgate.client import Stack

_REASONS = {
    "paused": "its process is stopped, by the guard while Redis is away, or by somebody else",
    "not_begun": "its process has not begun it yet",
    "signal_taken": "its handler has taken or blocked the signal that asks (SIGRTMAX - 1)",
    "another_task": "its event loop does not answer: another tenant's task holds it",
    "no_answer": "its process does not answer",
}


def stack(ctx: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Show where a running task is: its live Python stack, the innermost call first.

    Exit code 1 when it runs and has none now, 7 when it does not run; why is said.

    Examples:

      taskgate stack 0193c0de-7a3e-7b1c-9d2f-0123456789ab

      taskgate stack $ID --json | jq '.threads[0].frames[0]'
    """
    found: Stack = ctx.obj.stack(task_id)
    if as_json:
        print_json(found)
    elif found.get("text"):
        _show(found)
    reason = found.get("reason")
    if reason:
        note(f"taskgate: no stack now: {_REASONS.get(reason, plain(reason))}")
        raise typer.Exit(ExitCode.FAILED)


def _show(found: "Stack") -> None:
    if found.get("shared"):
        note("taskgate: its event loop does not answer; this is what holds it, maybe another task")
    for line in str(found["text"]).splitlines():
        print(plain(line))

"""Words on a terminal: one clear line per failure, and nothing that a task wrote may steer the terminal."""

import json
import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from taskgate.client import ServiceError, Task


class ExitCode(IntEnum):
    """What scripts decide by; docs/client.md has the table."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    CANCELED = 4
    EXPIRED = 5
    NOT_FOUND = 6
    REFUSED = 7
    CRASHED = 70
    INTERRUPTED = 130
    UNREAD = 141
    """What a shell says of a command that a closed pipe has ended."""


_ENDS = {"failed": ExitCode.FAILED, "canceled": ExitCode.CANCELED, "expired": ExitCode.EXPIRED}
"""In the order in which they outweigh each other."""


def code_of_ends(tasks: Iterable["Task"]) -> ExitCode:
    """How these tasks ended: a failure outweighs a cancel, that what expired. What has not ended is well."""
    statuses = {task.get("status") for task in tasks}
    return next((code for status, code in _ENDS.items() if status in statuses), ExitCode.OK)


def code_of_error(error: "ServiceError") -> ExitCode:
    from taskgate.client import NotFound, Refused, Unavailable, Unsendable

    if isinstance(error, Unsendable):
        return ExitCode.USAGE
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    refused = isinstance(error, Refused) and not isinstance(error, Unavailable)
    return ExitCode.REFUSED if refused else ExitCode.UNREACHABLE


def plain(text: object) -> str:
    """One line without control characters: escape sequences in a task's message stay harmless."""
    return "".join(char if char.isprintable() else " " for char in str(text))


def print_json(value: object) -> None:
    """One line, at once; with escapes where standard output has no such characters."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        text = json.dumps(value)
    print(text, flush=True)


def note(text: str) -> None:
    """A line for the person at the terminal: stderr, so that stdout stays what scripts read."""
    print(text, file=sys.stderr, flush=True)


def fail(text: str, code: ExitCode) -> NoReturn:
    note(f"taskgate: {text}")
    raise typer.Exit(code)


def explain(error: "ServiceError") -> str:
    """The one line for a service that did not do what was asked."""
    from taskgate.client import Refused

    if not isinstance(error, Refused):
        return plain(error)
    parts = [error.title if error.errors or not error.detail else error.detail]
    parts += [f"{pointer}: {detail}" for pointer, detail in error.errors]
    line = f"refused: {'; '.join(parts)} ({error.status} {error.slug})"
    if error.retry_after_s is not None:
        line += f"; try again in {error.retry_after_s:g} s"
    return plain(line)

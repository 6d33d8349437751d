"""Words on a terminal: one clear line per failure, and nothing that a task wrote may steer the terminal."""

import sys
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from taskgate.client import ServiceError


class ExitCode(IntEnum):
    OK = 0
    ENDED_OTHERWISE = 1
    USAGE = 2
    SERVICE = 3


def plain(text: object) -> str:
    """One line without control characters: escape sequences in a task's message stay harmless."""
    return "".join(char if char.isprintable() else " " for char in str(text))


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

"""JSON from the command line: the argument itself, @FILE, or - for standard input."""

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer


def read_json(argument: str) -> bytes:
    """The text as given, so that no number or key order is lost.

    Raises:
        typer.BadParameter: unreadable, or not strict JSON.
    """
    raw = _read(argument)
    try:
        json.loads(raw.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not JSON: {error}") from None
    return raw


def read_object(argument: str | None) -> dict[str, Any] | None:
    """Like `read_json`, for an option that wants a JSON object."""
    if argument is None:
        return None
    value = json.loads(read_json(argument))
    if not isinstance(value, dict):
        raise typer.BadParameter("not a JSON object")
    return value


def _read(argument: str) -> bytes:
    if argument == "-":
        return sys.stdin.buffer.read()
    if not argument.startswith("@"):
        return argument.encode(errors="surrogateescape")
    try:
        return Path(argument[1:]).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{argument[1:]}: {error.strerror}") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")

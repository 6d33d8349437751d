"""Reading a text/event-stream from the pieces in which it arrives."""

import re
from collections.abc import Iterable, Iterator

_END = re.compile(rb"\r?\n\r?\n")


def events(pieces: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """(event name, data) of each whole event that carries data."""
    buffer = b""
    for piece in pieces:
        *whole, buffer = _END.split(buffer + piece)
        for block in whole:
            fields = dict(_field(line) for line in block.decode().splitlines())
            if "data" in fields:
                yield fields.get("event", "message"), fields["data"]


def _field(line: str) -> tuple[str, str]:
    """Taskgate's data are one line each; a comment has the empty name."""
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")

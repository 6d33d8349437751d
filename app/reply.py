"""A whole answer as the door sends it, and the header lines that all of one kind share."""

from typing import NamedTuple

from app.grants import OPEN, Grant

Headers = list[tuple[bytes, bytes]]


class Reply(NamedTuple):
    status: int
    headers: Headers
    body: bytes


class Caller(NamedTuple):
    """Who asks, as the door found out."""

    tenant: str
    request_id: str
    grant: Grant = OPEN
    """What it may do."""


CALLER = "taskgate.caller"
"""Where FastAPI's routes find the Caller in the scope."""

LATER = "taskgate.later"
"""Where a route leaves an ASGI function (in a list) that the door calls after it: so a stream is sent without FastAPI's
two dozen frames, which cost more than the sending, and a third of its memory."""

PROTECTION: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""Of every answer: no browser guesses what it is, shows it within another page or tells another where it was."""

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
NO_STORE: tuple[bytes, bytes] = (b"cache-control", b"no-store")


def length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)

"""Request bodies: never more of one in memory than is allowed, never waited for without end."""

import asyncio
import types
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

from starlette.types import Message, Receive

from app.errors import Problem

T = TypeVar("T")

WITHIN_S = 30.0
"""A whole body must have arrived by then."""


class ClientGone(Exception):
    """The client hung up before its request was complete: there is nobody to answer."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """The whole body.

    Raises:
        Problem: it is larger than `limit`, or too slow. The rest stays unread, and the connection is closed.
        ClientGone: it will never be complete.
    """
    _check_declared(headers, limit)
    reading = receive().__await__()
    try:
        waiting = next(reading)
    except StopIteration as there:
        message: Message = there.value  # nearly always: no timer is needed for what has already arrived
        if message["type"] == "http.request" and not message.get("more_body"):
            body: bytes = message.get("body", b"")
            _check(len(body), limit)
            return body
    else:
        message = await _within(_resumed(reading, waiting))
    return await _within(_join(message, receive, limit))


@types.coroutine
def _resumed(reading: Generator[Any, Any, Message], waiting: Any) -> Generator[Any, Any, Message]:
    """The rest of a call that was begun by hand and has to wait."""
    yield waiting
    return (yield from reading)


async def _within(arriving: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(WITHIN_S):
            return await arriving
    except TimeoutError:
        raise Problem("body-timeout", headers={"Connection": "close"}) from None


async def _join(message: Message, receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        _check(size, limit)
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()


class Limiter:
    """`receive` for FastAPI's routes, with the same limit."""

    def __init__(self, receive: Receive, headers: dict[bytes, bytes], limit: int) -> None:
        _check_declared(headers, limit)
        self._receive = receive
        self._limit = limit
        self._size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        _check(self._size, self._limit)
        return message


def _check_declared(headers: dict[bytes, bytes], limit: int) -> None:
    declared = headers.get(b"content-length")
    if declared is not None and declared.isdigit():
        _check(int(declared), limit)


def _check(size: int, limit: int) -> None:
    if size > limit:
        # What is still being sent is not read: the connection cannot be used again.
        raise Problem("body-too-large", f"At most {limit} bytes.", headers={"Connection": "close"})

"""What a client sends: bodies, never too much in memory and never waited for without end; and that it has gone."""

import asyncio
import types
import zlib
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

from starlette.types import Message, Receive

from app.errors import Problem

T = TypeVar("T")

WITHIN_S = 30.0
"""A whole body must have arrived by then."""

ROOM_BYTES = 64 * 1024**2
"""For all bodies that are read or worked on at a time, and REQUEST_BYTES for each of them."""

REQUEST_BYTES = 8 * 1024
_ROOM_RETRY_S = 1

STALLED_S = 1.0
PACE_BYTES = 64 * 1024
"""A body that has brought less for so long gives way when there is no room for another."""


class ClientGone(Exception):
    """The client hung up before its request was complete: there is nobody to answer."""


class Bodies:
    """How much of all bodies is in memory, and may be; each of them at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.arriving: dict[Hold, None] = {}
        """Those that wait for their clients; first who has brought little for longest."""
        self._room = max(ROOM_BYTES, 8 * limit)

    def take(self, size: int, by: "Hold") -> None:
        """Raises Problem: there is no room for so many bytes more, and nobody else to give way."""
        while self.held + size > self._room:
            slowest = next((each for each in self.arriving if each is not by), None)
            if slowest is None or not slowest.gives_way():
                raise Problem("overloaded", retry_after_s=_ROOM_RETRY_S, headers={"Connection": "close"})
        self.held += size


class Hold:
    """One request's share, given back at its end."""

    __slots__ = ("_bodies", "_brought", "_loop", "_since", "_size", "_timeout", "limit")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._size = 0
        self.limit = bodies.limit
        self.grow(REQUEST_BYTES)

    def grow(self, more: int) -> None:
        """Raises Problem: there is no room for it."""
        self._bodies.take(more, self)
        self._size += more

    def end(self) -> None:
        self._bodies.held -= self._size
        self._size = 0

    async def within(self, arriving: Coroutine[Any, Any, T]) -> T:
        """What has to be waited for. Raises Problem: it takes too long, or had to give way."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WITHIN_S) as self._timeout:
                self._begin()
                return await arriving
        except TimeoutError:
            raise _too_slow() from None
        finally:
            self._bodies.arriving.pop(self, None)

    def _begin(self) -> None:
        self._since = self._loop.time()
        self._brought = 0
        self._bodies.arriving[self] = None

    def arrived(self, more: int) -> None:
        """Raises Problem: there is no room for it, or there had to be for another."""
        if self not in self._bodies.arriving:
            raise _too_slow()
        self._brought += more
        if self._brought >= PACE_BYTES:
            del self._bodies.arriving[self]
            self._begin()
        self.grow(more)

    def gives_way(self) -> bool:
        """End it for another one, unless it comes fast enough."""
        now = self._loop.time()
        if now - self._since < STALLED_S:
            return False
        del self._bodies.arriving[self]
        self.end()
        if not self._timeout.expired():
            self._timeout.reschedule(now)
        return True


def _too_slow() -> Problem:
    return Problem("body-timeout", headers={"Connection": "close"})


async def read_body(receive: Receive, headers: dict[bytes, bytes], hold: Hold, arrived: bytes | None = None) -> bytes:
    """The whole body, as it was before any Content-Encoding. `arrived`: all of it, where the server has it already.

    Raises:
        Problem: it is larger than allowed, too slow, or encoded in another way than by gzip. What is unread stays so,
            and the connection is closed.
        ClientGone: it will never be complete.
    """
    if arrived is not None:
        _check(len(arrived), hold.limit)
        hold.grow(len(arrived))
        return arrived if b"content-encoding" not in headers else _decoded(arrived, headers, hold)
    _check_declared(headers, hold.limit)
    reading = receive().__await__()
    try:
        waiting = next(reading)
    except StopIteration as there:
        message: Message = there.value
        if message["type"] == "http.request" and not message.get("more_body"):
            body: bytes = message.get("body", b"")  # nearly always: no timer is needed for what has already arrived
            _check(len(body), hold.limit)
            hold.grow(len(body))
        else:
            body = await hold.within(_join(message, receive, hold))
    else:
        body = await hold.within(_join_from(_resumed(reading, waiting), receive, hold))
    return body if b"content-encoding" not in headers else _decoded(body, headers, hold)


def _decoded(body: bytes, headers: dict[bytes, bytes], hold: Hold) -> bytes:
    codings = [one.strip().lower() for one in headers[b"content-encoding"].split(b",")]
    codings = [one for one in codings if one not in (b"", b"identity")]
    if not codings:
        return body
    if codings not in ([b"gzip"], [b"x-gzip"]):
        raise Problem(
            "unsupported-media-type", "Content-Encoding can be gzip or identity.", headers={"Accept-Encoding": "gzip"}
        )
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        plain = inflater.decompress(body, hold.limit + 1)
    except zlib.error:
        raise Problem("bad-request", "The body is not gzip.") from None
    _check(len(plain), hold.limit)
    if not inflater.eof or inflater.unused_data:
        raise Problem("bad-request", "The body is not one whole gzip stream.")
    hold.grow(len(plain))
    return plain


@types.coroutine
def _resumed(reading: Generator[Any, Any, Message], waiting: Any) -> Generator[Any, Any, Message]:
    """The rest of a call that was begun by hand and has to wait."""
    yield waiting
    return (yield from reading)


async def _join_from(first: Awaitable[Message], receive: Receive, hold: Hold) -> bytes:
    return await _join(await first, receive, hold)


async def _join(message: Message, receive: Receive, hold: Hold) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        _check(size, hold.limit)
        hold.arrived(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()


async def until_gone(receive: Receive) -> None:
    """Return when the client has hung up; what it still sends is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Whole:
    """`receive` for FastAPI's routes: the body comes in one piece, within the same bounds."""

    def __init__(self, receive: Receive, headers: dict[bytes, bytes], bodies: Bodies) -> None:
        _check_declared(headers, bodies.limit)
        self._receive = receive
        self._headers = headers
        self._bodies = bodies
        self._hold: Hold | None = None

    async def __call__(self) -> Message:
        if self._hold is not None:
            return await self._receive()
        self._hold = Hold(self._bodies)
        try:
            body = await read_body(self._receive, self._headers, self._hold)
        except ClientGone:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}

    def end(self) -> None:
        if self._hold is not None:
            self._hold.end()


def _check_declared(headers: dict[bytes, bytes], limit: int) -> None:
    declared = headers.get(b"content-length")
    if declared is not None and declared.isdigit():
        _check(int(declared), limit)


def _check(size: int, limit: int) -> None:
    if size > limit:
        # What is still being sent is not read: the connection cannot be used again.
        raise Problem("body-too-large", f"At most {limit} bytes.", headers={"Connection": "close"})

"""One request and its answer on a connection: the two halves of ASGI."""

import asyncio
import http
from typing import TYPE_CHECKING, Any

import structlog
from starlette.types import ASGIApp, Message, Scope

from app.observers import FACTS, SHOWN_CHARS

if TYPE_CHECKING:
    from app.protocol import Connection

logger = structlog.get_logger()

EXCHANGE = "taskgate.exchange"
"""Where the door finds the Exchange in the scope of our own server: it takes and answers in one step what ASGI does in
messages, which cost more than all checks of a submission."""

HIGH_WATER_BYTES = 64 * 1024
"""What has arrived of a body and nobody has taken; above it nothing more is read."""

_CLOSE = (b"connection", b"close")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_WITHOUT_BODY = (204, 304)


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return ""


_STATUS_LINES = [f"HTTP/1.1 {status} {_phrase(status)}\r\n".encode() for status in range(600)]


def head(status: int, lines: list[tuple[bytes, bytes]], *, common: bytes = b"", close: bool = False) -> bytes:
    """The head of an answer; `common`: headers of ours, as they are written.

    Raises:
        ValueError: a name or value has a line end in it, and would add lines of its own.
    """
    parts = [b"%s: %s\r\n" % line for line in lines]
    if close:
        parts.append(b"connection: close\r\n")
    text = b"".join(parts)
    if text.count(b"\n") != len(parts) or text.count(b"\r") != len(parts):
        raise ValueError("a header holds a line end")
    return b"%b%b%b\r\n" % (_STATUS_LINES[status], common, text)


_common: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")


def _written(lines: list[tuple[bytes, bytes]]) -> bytes:
    """The server's own headers: a list that it replaces once a second."""
    global _common
    if _common[0] is not lines:
        _common = lines, b"".join([b"%s: %s\r\n" % line for line in lines])
    return _common[1]


class Exchange:
    """A request that is answered once it is its turn; `gone` when there is nobody to answer any more."""

    __slots__ = (
        "_connection",
        "_expects_continue",
        "_head",
        "_left",
        "_news",
        "_taken",
        "body",
        "complete",
        "gone",
        "keep_alive",
        "more_body",
        "scope",
        "started",
        "task",
    )

    def __init__(self, connection: "Connection", scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self.scope = scope
        self.task: asyncio.Task[None]
        self.keep_alive = keep_alive
        self.more_body = True
        self.body = bytearray()
        self.started = False
        self.complete = False
        self.gone = False
        self._connection = connection
        self._expects_continue = expects_continue
        self._taken = False
        self._news: asyncio.Event | None = None
        self._head = b""
        self._left: int | None = 0

    async def run(self, app: ASGIApp) -> None:
        self.scope[EXCHANGE] = self
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            about = {"method": self.scope["method"], "path": self.scope["path"][:SHOWN_CHARS]}
            logger.exception("request failed", **about | self.scope.get(FACTS, {}))
        finally:
            del self.scope[EXCHANGE]  # requests leave no cycles
            self._connection.has_run(self)
            if not self.complete and not self.gone:
                self._connection.give_up(self)

    def arrived(self, body: bytes) -> None:
        self.body += body
        self.wake()

    def wake(self) -> None:
        if self._news is not None:
            self._news.set()

    def whole_body(self) -> bytes | None:
        """All of the body, if it has arrived and nobody has taken any of it; None: `receive` it."""
        if self.more_body or self._taken or self.gone:
            return None
        self._taken = True
        self._expects_continue = False
        body = bytes(self.body)
        self.body.clear()
        if len(body) > HIGH_WATER_BYTES:
            self._connection.read_on()
        return body

    def respond(self, status: int, lines: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """The whole answer at once, with its Content-Length among `lines`. False: not now, `send` it."""
        connection = self._connection
        if self.gone or self.started or connection.is_full or not self.keep_alive or _CLOSE in lines:
            return False
        self.started = self.complete = True
        text = head(status, lines, common=_written(connection.common_headers))
        connection.write(text if self.scope["method"] == "HEAD" or status in _WITHOUT_BODY else text + body)
        self.wake()
        connection.answered(self)
        return True

    async def receive(self) -> Message:
        """The next part of the body; once that is whole, word of the client's going."""
        if self._expects_continue and not self.started:
            self._expects_continue = False
            self._connection.write(_CONTINUE)
        while not (self.gone or self.complete):
            if self.body or not (self.more_body or self._taken):
                body = bytes(self.body)
                self.body.clear()
                self._taken = not self.more_body
                return {"type": "http.request", "body": body, "more_body": self.more_body}
            self._connection.read_on()
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._connection.is_full and not self.gone:
            await self._connection.has_drained()
        if self.gone:
            return
        if not self.started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"{message['type']} before the start of the response")
            self._start(message["status"], message.get("headers", ()))
        elif message["type"] != "http.response.body" or self.complete:
            raise RuntimeError(f"{message['type']} is out of place")
        else:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: Any) -> None:
        lines = [*self._connection.common_headers, *headers]
        given = dict(lines)
        if given.get(b"connection") == b"close":
            self.keep_alive = False
        if self.scope["method"] == "HEAD" or status in _WITHOUT_BODY:
            self._left = 0
        elif (declared := given.get(b"content-length")) is not None:
            self._left = int(declared)
        else:
            self._left = None
            if self.scope["http_version"] == "1.1":
                lines.append((b"transfer-encoding", b"chunked"))
            else:
                self.keep_alive = False
        text = head(status, lines, close=not self.keep_alive and b"connection" not in given)
        self.started = True
        if self._left is None:
            self._connection.write(text)  # of a stream: its first event may be long in coming
        else:
            self._head = text

    def _go_on(self, body: bytes, *, more: bool) -> None:
        if self._left is None:
            if self.scope["http_version"] == "1.1":
                body = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
                body += b"" if more else b"0\r\n\r\n"
        elif self.scope["method"] == "HEAD":
            body = b""
        else:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body is not of its declared length")
        if self._head or body:
            self._connection.write(self._head + body)
            self._head = b""
        if not more:
            self.complete = True
            self.wake()
            self._connection.answered(self)

"""Server-sent events as an ASGI response: pings, a client that stops reading, one that goes, and the end.

One task writes, one waits for the client to go, and one timer serves all streams (`Pulse`).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.body import until_gone
from app.observers import facts
from app.reply import LATER

logger = structlog.get_logger()

PING = b": ping\r\n\r\n"


class Pulse:
    """Calls each member with the loop's time, about once in `every_s`, while there are any."""

    every_s = 1.0

    def __init__(self) -> None:
        self._members: set[Callable[[float], None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.streams = 0
        """Of its members, event streams."""

    def add(self, member: Callable[[float], None]) -> None:
        self._members.add(member)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.every_s, self._beat)

    def remove(self, member: Callable[[float], None]) -> None:
        self._members.discard(member)
        if not self._members and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.every_s, self._beat)
        for member in list(self._members):
            member(loop.time())


class Bell:
    """Wakes one task, which looks by itself for what has changed."""

    def __init__(self) -> None:
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Return once it has been rung since the last time."""
        if not self._rung:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        self._rung = False


class Source(Protocol):
    """Where the blocks come from. `bell` ends its waiting: it returns then when `closing`, yields b"" when `silent`."""

    bell: Bell
    closing: bool
    silent: bool

    def blocks(self) -> AsyncGenerator[bytes, None]: ...


class EventStream(Response):
    """A stream of blocks until its source ends or its client goes."""

    media_type = "text/event-stream"

    ping_s = 15.0
    """Proxies close what is silent for a minute; and a client that has vanished is noticed by what it does not take."""

    send_s = 15.0
    """A client that takes nothing for so long is let go."""

    leave_s = 2.0
    """So long may the last words take."""

    def __init__(self, source: Source, pulse: Pulse, *, leaving: Callable[[], bool]) -> None:
        """`leaving`: whether the process stops, when nobody is waited for any longer."""
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache, no-store, no-transform", "X-Accel-Buffering": "no"})
        self._source = source
        self._pulse = pulse
        self._leaving = leaving
        self.on_end: Callable[[EventStream], None] | None = None
        self._sent_at = self._began_at = 0.0
        self._sending = self._stuck = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[LATER].append(self.run)

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._sent_at = loop.time()
        gone = asyncio.ensure_future(self._until_gone(receive))
        self._pulse.add(self._beat)
        self._pulse.streams += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with contextlib.aclosing(self._source.blocks()) as blocks:
                async for data in blocks:
                    await self._send(send, data or PING)
            await self._send(send, b"", more=False)
        except asyncio.CancelledError:
            if not self._stuck or self._task is None or self._task.uncancel():
                raise
            logger.info("a client stopped reading its stream", path=scope["path"], **facts(scope))
        finally:
            self._pulse.remove(self._beat)
            self._pulse.streams -= 1
            if self.on_end is not None:
                self.on_end(self)
            gone.cancel()

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        self._began_at = asyncio.get_running_loop().time()
        self._sending = True
        await send({"type": "http.response.body", "body": data, "more_body": more})
        self._sending = False
        self._sent_at = self._began_at

    def _beat(self, now: float) -> None:
        if self._sending:
            if now - self._began_at > (self.leave_s if self._leaving() else self.send_s) and self._task is not None:
                self._stuck = True
                self._task.cancel()
        elif now - self._sent_at > self.ping_s:
            self._source.silent = True
            self._source.bell.ring()

    async def _until_gone(self, receive: Receive) -> None:
        await until_gone(receive)
        self.end()

    def end(self) -> None:
        """Let its client go."""
        self._source.closing = True
        self._source.bell.ring()

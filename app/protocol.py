"""HTTP/1.1 as our server speaks it: httptools' parser, with bounds on what clients send, how slowly, how much at once.

uvicorn's own protocol waits for a head without end, keeps heads and pipelined requests of any size, takes trailers for
headers, loses the body of a request that offers an upgrade, and does not tell a running request that its client has
gone when another waits behind it.
"""

import asyncio
import functools
import math
import re
import urllib.parse
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from app.crowd import crowd_of
from app.door import Door
from app.errors import Problem
from app.exchange import HIGH_WATER_BYTES, Exchange, head

HEAD_S = 10.0
"""A request's head must be there by then, from the connection's start or its first byte on."""

MESSAGE_S = 45.0
"""And all of it by then; what reads the body gives up earlier, and says so (`body.WITHIN_S`)."""

KEEP_ALIVE_S = 75.0
"""Longer than the longest `poll_after_ms`, and than what usual load balancers keep idle connections for."""

LINGER_S = 2.0
"""For what still comes after an answer that did not wait for it: a close at once could take the answer along."""

LINGER_BYTES = 8 * 1024**2
MAX_URL_BYTES = 8 * 1024
MAX_HEADERS = 100
MAX_HEAD_BYTES = 32 * 1024

_SLICE_BYTES = MAX_HEAD_BYTES // 2
"""Parsed at a time: of requests that wait for one before them there are never more than fit into it."""

# As RFC 3986 writes them; a host without user information.
_HOST = rb"(?:(?:[\w.~!$&'()*+,;=-]++|%%[0-9A-Fa-f]{2})%b|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?"
_PATH = rb"(?:/(?:[\w.~!$&'()*+,;=:@/-]++|%[0-9A-Fa-f]{2})*+)?"
_QUERY = rb"(?:\?(?:[\w.~!$&'()*+,;=:@/?-]++|%[0-9A-Fa-f]{2})*+)?"
_is_host = functools.lru_cache(256)(re.compile(_HOST % b"*" + rb"[ \t]*").fullmatch)
_is_target = re.compile(rb"(?:(?i:https?)://%b|(?=/))%b%b|\*" % (_HOST % b"+", _PATH, _QUERY)).fullmatch

_ASGI = {"version": "3.0", "spec_version": "2.3"}


class Connection(asyncio.Protocol):
    """One connection: requests are answered in their order, one at a time."""

    write: Callable[[bytes], None]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.since = 0.0
        self.allowed = math.inf
        self._door: Door = config.loaded_app
        self._state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = _parser(self)
        self._arriving: Exchange | None = None
        self._running: Exchange | None = None
        self._queue: deque[Exchange] = deque()
        self._unparsed = b""
        self._head_bytes = 0
        self._problem: Problem | None = None
        self._refusal = b""
        self._deaf = False
        self._dropped = 0
        self._reads = True
        self._writable: asyncio.Event | None = None

    @property
    def common_headers(self) -> list[tuple[bytes, bytes]]:
        return self._state.default_headers

    # Of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.write = transport.write
        self._server = get_local_addr(transport)
        self._client = get_remote_addr(transport)
        self._await(HEAD_S)
        self._state.connections.add(self)  # type: ignore[arg-type]
        if not crowd_of(self._state).joined(self):
            self._refuse(Problem("overloaded", retry_after_s=1))

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._deaf = True
        for exchange in (self._running, *self._queue):
            if exchange is not None:
                exchange.gone = True
                exchange.wake()
        self._queue.clear()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self._transport.abort()
            return
        if self._queue or self._unparsed:
            self._unparsed += data
        elif len(data) <= _SLICE_BYTES:
            self._feed(data)
        else:
            self._parse(data)
        self.read_on()

    # Of the server, and of the crowd

    def shutdown(self) -> None:
        """Answer what has begun, then close."""
        last = self._queue[-1] if self._queue else self._running
        if last is None:
            self.close()
        else:
            last.keep_alive = False

    def overdue(self) -> None:
        """The client has let us wait for too long."""
        if self._arriving is not None or self._head_bytes == 0 or self._deaf:
            self.close()
        else:
            self._refuse(Problem("request-timeout"))

    def close(self) -> None:
        self._deaf = True
        self._transport.close()

    # Of the exchanges

    @property
    def is_full(self) -> bool:
        """Whether what has been written is more than the client has taken by far."""
        return self._writable is not None

    async def has_drained(self) -> None:
        if self._writable is not None:
            await self._writable.wait()

    def read_on(self) -> None:
        """Read if, and only if, somebody has use for what comes."""
        untaken = len(self._unparsed) + (len(self._running.body) if self._running else 0)
        wanted = self._deaf or untaken <= HIGH_WATER_BYTES
        if wanted != self._reads and not self._transport.is_closing():
            self._reads = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def answered(self, exchange: Exchange) -> None:
        self._state.total_requests += 1
        self._running = None
        if self._transport.is_closing():
            return
        if not exchange.keep_alive:
            self._end(exchange)
        elif self._queue:
            following = self._queue.popleft()
            if following.more_body:
                self._await(MESSAGE_S)
            self._run(following)
        elif self._refusal:
            self._say_refusal()
        elif not exchange.more_body:
            self._await(KEEP_ALIVE_S if self._arriving is exchange else HEAD_S)
        if self._unparsed and not self._queue:
            data, self._unparsed = self._unparsed, b""
            self._parse(data)
        self.read_on()

    def give_up(self, exchange: Exchange) -> None:
        """Its answer will never be whole."""
        if exchange.started and self.is_full:
            self._transport.abort()  # its client does not read: what is written would wait for it
        elif exchange.started:
            self.close()
        else:
            exchange.gone = True
            self._running = None
            self._refusal = self._refused(Problem("internal-error"))
            self._say_refusal()

    # Of the parser

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        self._expects_continue = False
        self._arriving = None
        if self._running is None:
            self._await(HEAD_S)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arriving is not None:
            return  # a trailer: whoever checked the headers on the way has not seen it
        name = name.lower()
        if name == b"host":
            self._hosts += 1
            if not _is_host(value):
                self._problem = Problem("bad-request", "Host is a name or an address, and a port.")
        elif name == b"expect":
            self._expects_continue = value.lower() == b"100-continue"
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            self._problem = Problem("bad-request", "Transfer-Encoding can be chunked alone.")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        version = parser.get_http_version()
        self._method = parser.get_method()
        self._check_head(version)
        self._head_bytes = 0
        if parser.should_upgrade():
            return
        exchange = Exchange(
            self,
            self._scope(version),
            keep_alive=version == "1.1" and parser.should_keep_alive(),
            expects_continue=self._expects_continue,
        )
        self._arriving = exchange
        if self._running is None:
            self.allowed = MESSAGE_S
            self._run(exchange)
        else:
            self._queue.append(exchange)

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None and not self._arriving.complete:
            self._arriving.arrived(body)

    def on_message_complete(self) -> None:
        exchange = self._arriving
        if exchange is None:  # an upgrade was offered
            return
        exchange.more_body = False
        if exchange is self._running:
            self.allowed = math.inf
            exchange.wake()
        elif self._running is None:
            self._await(KEEP_ALIVE_S)

    def _scope(self, version: str) -> Scope:
        path, raw_path, query = _parsed(self._url)
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "root_path": "",
            "method": self._method.decode("ascii"),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": self._app_state.copy(),
        }

    def _check_head(self, version: str) -> None:
        """Raises Problem, which comes out of the parser as an error of its own."""
        if version not in ("1.1", "1.0"):
            self._problem = Problem("bad-request", "This is not HTTP/1.1.")
        elif len(self._url) > MAX_URL_BYTES:
            self._problem = Problem("url-too-long")
        elif len(self._headers) > MAX_HEADERS:
            self._problem = Problem("head-too-large")
        elif self._hosts != 1 and (self._hosts or version == "1.1"):
            self._problem = Problem("bad-request", "A request has one Host header.")
        elif self._method == b"CONNECT":
            self._problem = Problem("method-not-allowed", "This is no proxy.", headers={"Allow": "GET, HEAD, POST"})
        if self._problem is not None:
            raise self._problem

    def _parse(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE_BYTES):
            if self._deaf:
                return
            if self._queue or self._unparsed:
                self._unparsed += data[start:]
                return
            self._feed(data[start : start + _SLICE_BYTES])

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(self._problem or Problem("bad-request", "This is not HTTP/1.1."))
            return
        if self._arriving is None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(Problem("head-too-large"))

    def _decline_upgrade(self, rest: bytes) -> None:
        """Java's client offers HTTP/2 with its first request: that one is taken as if it had not, with its body."""
        lines = [b"%s %s HTTP/%s" % (self._method, self._url, self._parser.get_http_version().encode())]
        lines += [b"%s: %s" % line for line in self._headers if line[0] != b"upgrade"]
        self._parser = _parser(self)
        self._feed(b"\r\n".join([*lines, b"", b""]))
        self._parse(rest)

    def _run(self, exchange: Exchange) -> None:
        self._running = exchange
        task = exchange.task = self._loop.create_task(exchange.run(self._door))
        self._state.tasks.add(task)

    def has_run(self, exchange: Exchange) -> None:
        """Its task ends: the server need not wait for it any more."""
        self._state.tasks.discard(exchange.task)

    def _await(self, seconds: float) -> None:
        """From now on it is the client's turn."""
        self.since = self._loop.time()
        self.allowed = seconds

    def _refuse(self, problem: Problem) -> None:
        """Answer what has come before, then that; nothing that follows can be understood, or shall be."""
        self._deaf = True
        self._refusal = self._refused(problem)
        if self._queue and self._queue[-1].more_body:
            self._queue.pop()
        running = self._running
        if running is not None and running.more_body:  # it is its own body that cannot be understood
            running.gone = True
            running.wake()
            self._running = None
            if running.started:
                self.close()
                return
        if self._running is None:
            self._say_refusal()

    def _refused(self, problem: Problem) -> bytes:
        reply = self._door.refuse(problem)
        return head(reply.status, [*self.common_headers, *reply.headers], close=True) + reply.body

    def _say_refusal(self) -> None:
        self.write(self._refusal)
        self._linger()

    def _end(self, exchange: Exchange) -> None:
        if exchange.more_body:
            self._linger()
        else:
            self.close()

    def _linger(self) -> None:
        """Nothing more will be written; what comes is dropped for a while."""
        self._deaf = True
        self._await(LINGER_S)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.read_on()


@functools.lru_cache(1024)
def _parsed(url: bytes) -> tuple[str, bytes, bytes]:
    """Path, path as sent, and query: most requests are for few URLs. Raises HttpParserInvalidURLError."""
    if not _is_target(url):
        raise httptools.HttpParserInvalidURLError
    parts = httptools.parse_url(url)
    raw = parts.path or b"/"
    path = raw.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path, raw, parts.query or b""


def _parser(connection: Connection) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # requests behind the last one are just dropped
    return parser

"""The supervisor's own port: whether it lives, whether it works, and what it counts. A few answers, no framework."""

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import httptools
import structlog

from taskgate import checks, listening
from taskgate.checks import Check
from taskgate.metrics import CONTENT_TYPE
from taskgate.settings import Settings

log = structlog.get_logger()

WITHIN_S = 10.0
"""From a connection to its answer; each has one."""

MOST = 64
"""Connections at a time: probes and a Prometheus or two. One more, and the oldest goes: it may have nothing to ask."""

MAX_HEAD_BYTES = 16 * 1024


class Answer(NamedTuple):
    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[str, ...] = ()


class _Request:
    """What httptools finds in it."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.whole = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.whole = True


class Port:
    """Listens from its construction on; `run` answers until cancelled."""

    def __init__(
        self, settings: Settings, *, checks: Callable[[], Mapping[str, Check]], metrics: Callable[[], bytes]
    ) -> None:
        """
        Raises:
            SettingsError: the address is taken, or none of this machine's.
        """
        self._checks = checks
        self._metrics = metrics
        self._key = None if settings.api_key is None else settings.api_key.get_secret_value().encode()
        self._open: dict[asyncio.StreamWriter, None] = {}
        """In the order in which they came."""
        variables = "TASKGATE_HOST, TASKGATE_WORKER_HEALTH_PORT"
        self._socket = listening.listen(settings.host, settings.worker_health_port or 0, variables=variables)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    async def run(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._socket, limit=MAX_HEAD_BYTES)
        log.info("worker health listens", url=listening.url_of(self._socket))
        try:
            await asyncio.Event().wait()
        finally:
            server.close()  # not waited for: who is connected and asks nothing would delay the stop
            for writer in self._open:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._answer(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # whoever asked has gone, never asked, or does not take its answer
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = _Request()
        parser = httptools.HttpRequestParser(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            with contextlib.suppress(httptools.HttpParserUpgrade):  # offered, and not taken: it is answered as it is
                parser.feed_data(head)
            if not request.whole:
                raise ValueError(head)
            found = self._of(parser.get_method().decode(), request)
        except (httptools.HttpParserError, asyncio.LimitOverrunError, ValueError):
            found = Answer(HTTPStatus.BAD_REQUEST)
        status, body, content_type, headers = found
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"content-type: {content_type}",
            f"content-length: {len(body)}",
            "cache-control: no-store",
            "connection: close",
            *headers,
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if parser.get_method() == b"HEAD" else body))
        await writer.drain()

    def _of(self, method: str, request: _Request) -> Answer:
        url = urlsplit(request.url.decode())
        if method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, headers=("allow: GET, HEAD",))
        match url.path:
            case "/livez" | "/healthz":
                return Answer(HTTPStatus.OK, b"ok\n")
            case "/readyz":
                return self._ready(verbose="verbose" in parse_qs(url.query, keep_blank_values=True))
            case "/metrics":
                return self._refusal(request) or Answer(HTTPStatus.OK, self._metrics(), CONTENT_TYPE)
        return Answer(HTTPStatus.NOT_FOUND)

    def _ready(self, *, verbose: bool) -> Answer:
        found = self._checks()
        ready = all(check.ok for check in found.values())
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        if verbose:
            return Answer(status, checks.lines(found))
        return Answer(status, checks.json(found), "application/json")

    def _refusal(self, request: _Request) -> Answer | None:
        """Numbers are for whoever has the bootstrap key, where there is one."""
        if self._key is None:
            return None
        scheme, _, key = request.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key):
            return None
        return Answer(HTTPStatus.UNAUTHORIZED, headers=('www-authenticate: Bearer realm="taskgate"',))

"""Bytes on a connection: what the protocol takes for a request is, for h11 too, that request with that body.

h11 is a strict reader of RFC 9112 in Python. The protocol may refuse more (and does: bare line feeds, for instance);
but where it takes a request that h11 reads in another way, a proxy could be led to see another request than we do.
"""

import asyncio
import atexit
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from app.errors import Problem
from app.protocol import Connection
from app.reply import Reply
from tests.fuzz.mutate import mutated

CORPUS = Path(__file__).parent / "corpus" / "wire"

WORDS = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b":",
        b": ",
        b"0",
        b"5",
        b"0x5",
        b"+5",
        b"-1",
        b"5;a=b",
        b"\0",
        b"\x80",
    ),
    *(
        b"GET",
        b"POST",
        b"HEAD",
        b"PUT",
        b"CONNECT",
        b"OPTIONS",
        b"PRI",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"HTTP/2.0",
        b"http/1.1",
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5, 5\r\n", b"Content-Length : 5\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: identity\r\n"),
    *(b"Transfer-Encoding:\tchunked \r\n", b"transfer-encoding: Chunked\r\n", b"Connection: close\r\n", b"X: \xe9\r\n"),
    *(b"Connection: keep-alive, Upgrade\r\nUpgrade: h2c\r\n", b"Upgrade: websocket\r\n", b"Expect: 100-continue\r\n"),
    *(
        b"Host: x\r\n",
        b"/tasks",
        b"http://x/tasks",
        b"*",
        b"x:1",
        b"?a=b",
        b"#c",
        b"%2F",
        b"..",
        b" \r\n",
        b"X-Tenant: b\r\n",
    ),
    *(
        b"5\r\nhello\r\n0\r\n\r\n",
        b"0\r\nX-Tenant: b\r\n\r\n",
        b"00005\r\nhello\r\n",
        b"fffffffffffffffff\r\n",
        b"hello",
    ),
]

_REFUSALS_OF_H11 = ("no request line received", "illegal request line", "illegal header line")
"""What it refuses and llhttp reads in one way: empty lines before a request, more spaces in it, odd bytes in values."""


class Request(NamedTuple):
    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _Door:
    """Takes every request whole."""

    def __init__(self) -> None:
        self.found: list[Request] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        self.found.append(Request(scope["method"].encode(), target, scope["headers"], body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    def refuse(self, problem: Problem) -> Reply:
        return Reply(problem.status, [], b"")


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: Any) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


_loop = asyncio.new_event_loop()
atexit.register(_loop.close)


def compare(data: bytes) -> bool:
    """Whether a request was taken. Raises AssertionError: h11 would have read another."""
    found = _loop.run_until_complete(_taken(data))
    wanted, why = _reference(data)
    for number, request in enumerate(found):
        if number == len(wanted):
            assert any(word in why for word in _REFUSALS_OF_H11), f"taken, but for h11 {why}: {request} of {data!r}"
            break
        assert _plain(request) == _plain(wanted[number]), f"{request} is {wanted[number]} for h11: {data!r}"
    return bool(found)


async def _taken(data: bytes) -> list[Request]:
    door = _Door()
    state = ServerState()
    config = Config(door, log_config=None)
    config.loaded_app = door
    connection = Connection(config, state, {})
    transport = _Transport()
    connection.connection_made(transport)
    middle = len(data) // 2
    for part in (data[:middle], data[middle:]):
        connection.data_received(part)
        for _ in range(1_000):
            if not state.tasks:
                break
            before = len(door.found)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if len(door.found) == before:
                break
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks)
    return door.found


def _reference(data: bytes) -> tuple[list[Request], str]:
    """The whole requests that h11 sees, and why it sees no more."""
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    server.receive_data(data)
    found: list[Request] = []
    head: h11.Request | None = None
    body = b""
    try:
        while True:
            event = server.next_event()
            match event:
                case h11.Request():
                    head, body = event, b""
                case h11.Data():
                    body += bytes(event.data)
                case h11.EndOfMessage():
                    assert head is not None
                    found.append(Request(head.method, head.target, list(head.headers), body))
                    # A refusal, as for every CONNECT: h11 takes a success there for the end of HTTP.
                    server.send(h11.Response(status_code=405, headers=[("content-length", "0")]))
                    server.send(h11.EndOfMessage())
                    if server.our_state is not h11.DONE or server.their_state is not h11.DONE:
                        return found, "closed"
                    server.start_next_cycle()
                case _:
                    return found, str(event)
    except h11.RemoteProtocolError as error:
        return found, str(error)


def _plain(request: Request) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]:
    """Without what both may spell in different ways: the target's form, and how the body was framed or offered."""
    framing = (b"transfer-encoding", b"content-length", b"upgrade")
    target = request.target
    if not target.startswith(b"/"):
        target = re.sub(rb"^[^/?]*/?", b"/", target.partition(b"://")[2])
    headers = [(name.lower(), value.strip()) for name, value in request.headers if name.lower() not in framing]
    return request.method, target.rstrip(b"?"), headers, request.body


def corpus() -> list[bytes]:
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def one(seeds: list[bytes], rng: random.Random) -> bytes:
    return mutated(seeds, WORDS, rng)

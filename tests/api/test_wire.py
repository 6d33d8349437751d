"""The server on the wire: what is HTTP/1.1 and what is not, and what clients may keep it busy with."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from app.protocol import MAX_HEAD_BYTES, MAX_URL_BYTES
from taskgate.contract.store import Store
from tests.api.conftest import Served, Worker
from tests.api.test_waiting import watchers
from tests.conftest import eventually

Serve = Callable[..., Awaitable[Served]]

BODY = b'{"type":"any","payload":1}'
POST = b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
WHOLE = POST + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
CHUNK = b"1a\r\n" + BODY + b"\r\n0\r\n\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
BEFORE = "from app import protocol, sse; protocol.LINGER_S = 60; sse.EventStream.ping_s = 600"
"""A test that has no CPU for 2 s still gets its answer, and no ping finds out that a client has gone."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def slug(self) -> str:
        return str(json.loads(self.body)["type"].rpartition("/")[2])


class Wire:
    """A connection whose bytes the test writes itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, since: float) -> None:
        self.reader = reader
        self.writer = writer
        self.since = since
        """When it was not there yet."""

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, within_s: float = 60) -> Answer:
        async with asyncio.timeout(within_s):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.rstrip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
            return Answer(int(first.split()[1]), headers, body)

    async def ended(self, *, within_s: float = 60) -> None:
        """Raises AssertionError: more came than was asked for."""
        async with asyncio.timeout(within_s):
            try:
                assert await self.reader.read() == b""
            except ConnectionError:
                pass


Connect = Callable[[], Awaitable[Wire]]


@pytest.fixture
async def connect(shared_gateway: Served, worker: Worker) -> AsyncIterator[Connect]:
    await shared_gateway.started()
    async with Connections(shared_gateway) as opened:
        yield opened


class Connections:
    """Opens connections, and closes them at the end."""

    def __init__(self, served: Served) -> None:
        self._port = served.port
        self._opened: list[Wire] = []

    async def __call__(self) -> Wire:
        since = time.monotonic()
        self._opened.append(Wire(*await asyncio.open_connection("127.0.0.1", self._port), since))
        return self._opened[-1]

    async def __aenter__(self) -> "Connections":
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self._opened:
            wire.writer.transport.abort()


async def waiting(store: Store) -> int:
    return int((await store.usage(0)).get("waiting:queue:default", 0))


NOT_HTTP: dict[str, bytes] = {
    "noise": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/0.9": b"GET /livez\r\n\r\n",
    "http/1.2": b"GET /livez HTTP/1.2\r\n\r\n",
    "small method": b"post /tasks HTTP/1.1\r\n\r\n",
    "bare lf": WHOLE.replace(b"\r\n", b"\n"),
    "nul": POST + b"X-A: a\0b\r\n\r\n",
    "fold": POST + b"X-A: a\r\n b\r\n\r\n",
    "space": POST + b"Content-Length : 26\r\n\r\n" + BODY,
    "no name": POST + b": x\r\n\r\n",
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "host with a space": b"GET /livez HTTP/1.1\r\nHost: a b\r\n\r\n",
    "host with a path": b"GET /livez HTTP/1.1\r\nHost: a@b/c\r\n\r\n",
    "fragment": b"GET /livez#x HTTP/1.1\r\nHost: x\r\n\r\n",
    "odd query": b'GET /livez?"<>` HTTP/1.1\r\nHost: x\r\n\r\n',
    "half an escape": b"GET /livez?a=%2 HTTP/1.1\r\nHost: x\r\n\r\n",
    "ftp": b"GET ftp://x/livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "user": b"GET http://a@x/livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "no authority": b"GET http:///livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "path": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
    "two lengths": POST + b"Content-Length: 26\r\nContent-Length: 25\r\n\r\n" + BODY,
    "one length twice": POST + b"Content-Length: 26, 26\r\n\r\n" + BODY,
    "signed length": POST + b"Content-Length: +26\r\n\r\n" + BODY,
    "huge length": POST + b"Content-Length: 99999999999999999999\r\n\r\n" + BODY,
    "length and chunks": POST + b"Content-Length: 26\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "chunks twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "other chunks": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNK,
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNK,
    "chunk of hex": POST + b"Transfer-Encoding: chunked\r\n\r\n0x" + CHUNK,
    "chunk of lf": POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK.replace(b"\r", b""),
    "longer chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n19" + CHUNK[2:],
    "connect": b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n",
}


@pytest.mark.parametrize("name", NOT_HTTP)
async def test_what_is_not_http_is_refused_in_json_and_cut(connect: Connect, live_store: Store, name: str) -> None:
    wire = await connect()
    wire.send(NOT_HTTP[name])
    answer = await wire.answer()
    assert (answer.status, answer.slug) == ((405, "method-not-allowed") if name == "connect" else (400, "bad-request"))
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == json.loads(answer.body)["request_id"]
    await wire.ended()
    assert await waiting(live_store) == 0


@pytest.mark.parametrize(
    ("target", "host"),
    [("/livez", ""), ("/livez?a=%2Fb;c:@/?!", "[::1]:80"), ("HTTPS://a.b:8/livez?", "a%20b:1 "), ("http://x?y", "x:")],
)
async def test_odd_targets_and_hosts_that_the_rfc_allows_are_read(connect: Connect, target: str, host: str) -> None:
    wire = await connect()
    wire.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert (await wire.answer()).status in (200, 404)


async def test_a_body_may_come_in_any_pieces(connect: Connect, live_store: Store) -> None:
    wire = await connect()
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=y\r\n{\r\n19\r\n" + BODY[1:] + b"\r\n0\r\n\r\n"
    for request in (WHOLE, chunked):
        for number in range(len(request)):
            wire.send(request[number : number + 1])
            await asyncio.sleep(0)
        assert (await wire.answer()).status == 202
    assert await waiting(live_store) == 2


async def test_trailers_are_no_headers(connect: Connect, live_store: Store) -> None:
    """What a proxy checks or sets, a client could otherwise set again behind its body."""
    wire = await connect()
    head = b"POST /tasks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire.send(head + b"1a\r\n" + BODY + b"\r\n0\r\nContent-Type: application/json\r\n\r\n")
    assert (await wire.answer()).status == 415
    wire.send(GET)
    assert (await wire.answer()).status == 200
    assert await waiting(live_store) == 0


async def test_pipelined_requests_are_answered_in_their_order(connect: Connect, live_store: Store) -> None:
    wire = await connect()
    long = POST + b"Content-Length: 777\r\n\r\n" + BODY.ljust(777)
    requests = [long, GET, b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n"] * 400
    wire.send(b"".join(requests))
    assert [(await wire.answer()).status for _ in requests] == [202, 200, 404] * 400
    assert await waiting(live_store) == 400


async def test_what_is_in_order_is_answered_before_what_is_not(connect: Connect, live_store: Store) -> None:
    wire = await connect()
    wire.send(WHOLE + GET + b"nonsense\r\n\r\n" + WHOLE)
    assert [(await wire.answer()).status for _ in range(3)] == [202, 200, 400]
    await wire.ended()
    assert await waiting(live_store) == 1


async def test_nothing_follows_a_request_that_closes(connect: Connect, live_store: Store) -> None:
    wire = await connect()
    wire.send(WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: close") + WHOLE)
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (202, "close")
    await wire.ended()
    assert await waiting(live_store) == 1


async def test_an_offered_upgrade_is_declined_and_the_body_read(connect: Connect, live_store: Store) -> None:
    """Java's HTTP client offers HTTP/2 with its first request over plain HTTP."""
    wire = await connect()
    offer = b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB"
    request = WHOLE.replace(b"Host: x", offer)
    wire.send(request + request)
    assert [(await wire.answer()).status for _ in range(2)] == [202, 202]
    wire.send(request[:200])
    await asyncio.sleep(0.05)
    wire.send(request[200:] + GET.replace(b"Host: x", b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket"))
    assert [(await wire.answer()).status for _ in range(2)] == [202, 200]
    wire.send(request * 100)  # more than is parsed at a time
    assert [(await wire.answer()).status for _ in range(100)] == [202] * 100
    assert await waiting(live_store) == 103


async def test_a_body_is_asked_for_only_when_it_is_wanted(connect: Connect) -> None:
    wire = await connect()
    wire.send(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.send(BODY)
    assert (await wire.answer()).status == 202
    wire.send(POST + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    await wire.ended()


async def test_an_old_client_is_answered_and_closed(connect: Connect) -> None:
    wire = await connect()
    wire.send(b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (await wire.answer()).status == 200
    await wire.ended()


async def test_head_has_no_body(connect: Connect) -> None:
    wire = await connect()
    wire.send(GET.replace(b"GET", b"HEAD") + GET)
    head = (await wire.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    assert head[0] == b"HTTP/1.1 200 OK"
    assert (await wire.answer()).status == 200


async def test_head_of_a_task_has_no_body_but_its_length(connect: Connect) -> None:
    wire = await connect()
    wire.send(WHOLE)
    path = (await wire.answer()).headers["location"].encode()
    wire.send(b"HEAD %b HTTP/1.1\r\nHost: x\r\n\r\n" % path + WHOLE)
    head = (await wire.reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200 ok")
    assert b"content-length: 0" not in head
    assert (await wire.answer()).status == 202


TOO_LARGE: dict[str, tuple[int, str, bytes]] = {
    "url": (414, "url-too-long", b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * MAX_URL_BYTES)),
    "endless url": (431, "head-too-large", b"GET /" + b"x" * 10 * MAX_HEAD_BYTES),
    "many": (431, "head-too-large", POST + b"a: b\r\n" * 100 + b"\r\n"),
    "large": (431, "head-too-large", POST + b"a: %s\r\n\r\n" % (b"x" * 2 * MAX_HEAD_BYTES)),
    "endless": (431, "head-too-large", POST + b"a: " + b"x" * 10 * MAX_HEAD_BYTES),
}


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_head_has_a_bound(connect: Connect, name: str) -> None:
    status, slug, request = TOO_LARGE[name]
    wire = await connect()
    wire.send(request)
    answer = await wire.answer()
    assert (answer.status, answer.slug) == (status, slug)
    await wire.ended()
    wire = await connect()
    wire.send(
        b"GET /livez?%s HTTP/1.1\r\nHost: x\r\n" % (b"x" * (MAX_URL_BYTES - 7))
        + b"a: %s\r\n" % (b"x" * 150) * 98
        + b"\r\n"
    )
    assert (await wire.answer()).status == 200


async def test_an_answer_to_half_a_body_arrives(connect: Connect) -> None:
    """The client is still sending when it is refused: what it sends must not reset the connection under the answer."""
    wire = await connect()
    wire.send(POST + b"Content-Length: 50000000\r\n\r\n" + b" " * 5_000_000)
    answer = await wire.answer()
    assert (answer.status, answer.slug) == (413, "body-too-large")


async def test_a_connection_outlives_a_refusal(connect: Connect) -> None:
    wire = await connect()
    for request, status in (
        (POST + b"Content-Length: 1\r\n\r\n{", 400),
        (GET.replace(b"/livez", b"/x"), 404),
        (GET, 200),
    ):
        wire.send(request)
        assert (await wire.answer()).status == status


async def test_a_stream_before_another_request_ends_when_its_client_goes(
    shared_gateway: Served, connect: Connect, worker: Worker, redis_client: Any
) -> None:
    """uvicorn would tell the last request of the connection alone, and feed the stream for ever."""
    wire = await connect()
    wire.send(WHOLE)
    task = json.loads((await wire.answer()).body)["id"]
    wire.send(b"GET /tasks/%s/events HTTP/1.1\r\nHost: x\r\n\r\n" % task.encode())
    await wire.reader.readuntil(b"event: snapshot")

    await eventually(lambda: watchers(redis_client, task), lambda count: count == 1)
    wire.send(GET)
    await asyncio.sleep(0.1)
    wire.writer.transport.abort()
    await eventually(lambda: watchers(redis_client, task), lambda count: count == 0)


@pytest.fixture
async def impatient(serve: Serve, worker: Worker) -> AsyncIterator[Connections]:
    """A gateway that waits for nobody longer than some seconds, and holds 40 connections."""
    served = await serve(
        before="import app.protocol as p, app.crowd as c, app.body as b; p.HEAD_S = 4; p.MESSAGE_S = 6; "
        "p.KEEP_ALIVE_S = 60; b.WITHIN_S = 1.5; c.LOOK_EVERY_S = 0.1; c.MAX_CONNECTIONS = 40; c.SPARE_FILES = 0"
    )
    async with Connections(served) as opened:
        yield opened


async def drip(wire: Wire, *, every_s: float = 0.3) -> tuple[Answer, float]:
    """Send a byte now and then until there is an answer; how old the connection is then."""
    answer = asyncio.ensure_future(wire.answer(within_s=60))
    while not answer.done():
        wire.send(b"x")
        await asyncio.wait([answer], timeout=every_s)
    return await answer, time.monotonic() - wire.since


async def test_who_sends_too_slowly_is_told_and_cut(impatient: Connections) -> None:
    """F30: silent, slow in the head, slow in the body; and after an answer that did not wait for the body."""
    stream, idle = await impatient(), await impatient()
    idle.send(GET)
    assert (await idle.answer()).status == 200
    stream.send(WHOLE)
    task = json.loads((await stream.answer()).body)["id"].encode()
    stream.send(b"GET /tasks/%s/events HTTP/1.1\r\nHost: x\r\n\r\n" % task)
    await stream.reader.readuntil(b"event: snapshot")
    stream.send(GET)  # behind the stream, so never answered: the stream goes on
    silent, head, body, redrive, after = [await impatient() for _ in range(5)]
    head.send(POST + b"X-A: ")
    body.send(POST + b"Content-Length: 1000000\r\n\r\n")
    redrive.send(POST.replace(b"/tasks", b"/dead-letters/redrive") + b"Content-Length: 1000000\r\n\r\n")
    after.send(b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    assert (await after.answer()).status == 404
    dripping = asyncio.gather(drip(head), drip(body), drip(redrive))
    await silent.ended()
    for (answer, took_s), slug, after_s in zip(
        await dripping, ("request-timeout", "body-timeout", "body-timeout"), (4, 1.5, 1.5), strict=True
    ):
        assert (answer.status, answer.slug) == (408, slug)
        assert after_s - 0.1 <= took_s < after_s + 20
    while not (after.reader.at_eof() or after.reader.exception()):
        after.send(b"x")
        await asyncio.sleep(0.1)
    assert not idle.reader.at_eof()
    assert not stream.reader.at_eof()


async def test_a_flood_of_connections_keeps_nobody_out(impatient: Connections) -> None:
    """Those that have been silent longest make room; whoever is being answered stays."""
    busy = await impatient()
    busy.send(WHOLE)
    task = json.loads((await busy.answer()).body)["id"].encode()
    busy.send(b"GET /tasks/%s/events HTTP/1.1\r\nHost: x\r\n\r\n" % task)
    await busy.reader.readuntil(b"event: snapshot")
    flood = [await impatient() for _ in range(200)]
    for _ in range(20):
        wire = await impatient()
        wire.send(GET)
        assert (await wire.answer()).status == 200
    for wire in flood[:150]:
        await wire.ended()
    assert not busy.reader.at_eof()


async def test_one_too_many_is_refused_when_all_are_busy(impatient: Connections) -> None:
    first = await impatient()
    first.send(WHOLE)
    task = json.loads((await first.answer()).body)["id"].encode()
    first.writer.close()
    await first.writer.wait_closed()
    for _ in range(40):
        wire = await impatient()
        wire.send(b"GET /tasks/%s/events HTTP/1.1\r\nHost: x\r\n\r\n" % task)
        await wire.reader.readuntil(b"event: snapshot")
    one_more = await impatient()
    answer = await one_more.answer()
    assert (answer.status, answer.slug, answer.headers["retry-after"]) == (503, "overloaded", "1")
    await one_more.ended()

"""Bodies that come slowly: they make room for others, and FastAPI's routes have the same bounds as the hot ones."""

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Scope

import app.body
from app.body import REQUEST_BYTES, Bodies, Hold
from app.door import Door
from app.errors import Problem
from taskgate.contract.store import Store
from tests.api.conftest import Worker
from tests.conftest import eventually

DoorOf = Callable[..., Door]

BODY = b'{"type":"any","payload":1}'
NEARLY = 30_000
"""Of a body of 40,000 bytes; two such requests leave no room for a third."""


class Sender:
    """A request whose body the test brings itself."""

    def __init__(self, door: Door, path: str = "/tasks", **headers: str) -> None:
        lines = {"content-type": "application/json", "host": "x", **headers}
        self._scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "http_version": "1.1",
            "scheme": "http",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in lines.items()],
        }
        self._coming: asyncio.Queue[Message] = asyncio.Queue()
        self._sent: list[Any] = []
        self._task = asyncio.ensure_future(door(self._scope, self._coming.get, self._send))

    async def _send(self, message: Message) -> None:
        self._sent.append(message)

    def brings(self, body: bytes, *, more: bool = True) -> "Sender":
        self._coming.put_nowait({"type": "http.request", "body": body, "more_body": more})
        return self

    @property
    def waits(self) -> bool:
        return not self._task.done()

    async def answer(self) -> tuple[int, str]:
        """Its status, and the slug of its problem."""
        await asyncio.wait_for(self._task, 60)
        body = json.loads(b"".join(message.get("body", b"") for message in self._sent))
        return self._sent[0]["status"], body.get("type", "").rpartition("/")[2]


@pytest.fixture
def door(gateway_of: DoorOf, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Door:
    """There is room for two of NEARLY bytes, and for no request more."""
    monkeypatch.setattr(app.body, "ROOM_BYTES", 2 * (NEARLY + REQUEST_BYTES) + 1_000)
    monkeypatch.setattr(app.body, "STALLED_S", 3600)
    door = gateway_of(max_body_bytes=1_000)
    door._bodies.limit = 40_000
    return door


async def held(bodies: Bodies, wanted: int) -> None:
    async def now() -> int:
        return bodies.held

    await eventually(now, lambda held: held == wanted)


async def full(door: Door, path: str = "/tasks") -> list[Sender]:
    """Two whose bodies have stalled, the elder one first."""
    senders = []
    for count in (1, 2):
        senders.append(Sender(door, path).brings(b" " * NEARLY))
        await held(door._bodies, count * (NEARLY + REQUEST_BYTES))
    return senders


@pytest.mark.parametrize("path", ["/tasks", "/dead-letters/redrive"])
async def test_a_body_that_has_stalled_makes_room(door: Door, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    first, second = await full(door, path)
    assert await Sender(door).brings(BODY, more=False).answer() == (503, "overloaded")
    assert first.waits

    monkeypatch.setattr(app.body, "STALLED_S", 0)
    assert (await Sender(door).brings(BODY, more=False).answer())[0] == 202
    assert await first.answer() == (408, "body-timeout")
    assert second.waits
    assert await Sender(door, path).brings(b" " * NEARLY, more=False).answer() != (503, "overloaded")
    second.brings(b"", more=False)
    assert (await second.answer())[1] == "invalid-json"
    assert door._bodies.held == 0


async def test_who_keeps_the_pace_goes_on_and_a_drip_does_not(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.body, "PACE_BYTES", 100)
    first, second = await full(door)
    first.brings(b" " * 100)
    await held(door._bodies, 2 * (NEARLY + REQUEST_BYTES) + 100)
    second.brings(b" " * 99)
    await held(door._bodies, 2 * (NEARLY + REQUEST_BYTES) + 199)
    monkeypatch.setattr(app.body, "STALLED_S", 0)
    assert (await Sender(door).brings(BODY, more=False).answer())[0] == 202
    assert await second.answer() == (408, "body-timeout")
    assert first.waits
    assert (await first.brings(b"", more=False).answer())[1] == "invalid-json"
    assert door._bodies.held == 0


async def test_what_comes_in_the_moment_of_giving_way_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its room has gone to another."""
    monkeypatch.setattr(app.body, "STALLED_S", 0)
    bodies = Bodies(40_000)
    hold = Hold(bodies)

    async def comes() -> None:
        assert hold.gives_way()
        hold.arrived(1)

    with pytest.raises(Problem) as refused:
        await hold.within(comes())
    assert (refused.value.status, bodies.held) == (408, 0)


async def test_one_whose_time_is_up_may_give_way_in_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.body, "STALLED_S", 0)
    monkeypatch.setattr(app.body, "WITHIN_S", 0)
    bodies = Bodies(40_000)
    hold = Hold(bodies)
    gave_way = []

    async def stalls() -> None:
        asyncio.get_running_loop().call_soon(lambda: gave_way.append(hold.gives_way()))
        await asyncio.Event().wait()

    with pytest.raises(Problem) as refused:
        await hold.within(stalls())
    assert (refused.value.status, gave_way, bodies.held) == (408, [True], 0)


async def test_a_body_for_fastapi_is_bounded_in_time(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.body, "WITHIN_S", 0.1)
    slow = Sender(door, "/dead-letters/redrive").brings(b"{")
    assert await slow.answer() == (408, "body-timeout")
    assert door._bodies.held == 0


async def test_a_body_for_fastapi_may_come_in_parts_and_in_gzip(door: Door, live_store: Store) -> None:
    wanted = b'{"ids":["nobody"]}'
    parts = Sender(door, "/dead-letters/redrive").brings(wanted[:5]).brings(wanted[5:], more=False)
    packed = Sender(door, "/dead-letters/redrive", content_encoding="gzip").brings(gzip.compress(wanted), more=False)
    assert (await parts.answer())[0] == (await packed.answer())[0] == 200
    assert door._bodies.held == 0


@pytest.mark.full
@pytest.mark.timeout(120)
async def test_a_flood_of_stalled_bodies_keeps_nobody_out(serve: Callable[..., Any], worker: Worker) -> None:
    """On the wire, with the room that there is: 64 bodies of nearly 1 MiB and 300 of 2 KiB have stalled."""
    served = await serve()
    head = b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writers = []

    async def request(length: int, body: bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writers.append(writer)
        writer.write(head % length + body)
        await writer.drain()
        return reader

    for size in (*[1024**2 - 10] * 64, *[2048] * 300):
        await request(1024**2, b" " * size)
    await asyncio.sleep(2 * app.body.STALLED_S)
    for _ in range(20):
        answer = await request(len(BODY), BODY)
        assert await asyncio.wait_for(answer.readline(), 60) == b"HTTP/1.1 202 Accepted\r\n"
    for writer in writers:
        writer.transport.abort()

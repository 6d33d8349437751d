"""Open streams that nobody reads any more, or that the gateway must end: nothing of them is left, and nobody waits."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from app.main import SILENT_PEER_MS, listen
from app.sse import EventStream
from taskgate.contract.models import Claimed
from tests.api.conftest import Served, Worker, client_of, submit, subscriptions
from tests.api.sse_client import Connected, Resuming
from tests.api.test_events import client
from tests.conftest import Server, eventually
from tests.processes import open_files

Serve = Callable[..., Awaitable[Served]]
FAST = "from app.sse import EventStream, Pulse; EventStream.ping_s = 0.2; EventStream.send_s = 0.5; Pulse.every_s = 0.1"


@pytest.fixture(scope="module")
def hasty(_servers: Callable[[str], Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway process that pings often and soon lets go, for tests that do not stop it."""
    folder = tmp_path_factory.mktemp("hasty")
    served = Served(folder / "port", before=FAST, redis_url=_servers("valkey").url)
    yield served
    served.kill()


async def running(served: Served, worker: Worker) -> Claimed:
    async with client(served) as http:
        await submit(http)
    [claimed] = await worker.claim()
    return claimed


async def opened(stream: Resuming) -> Connected:
    """A connection that has its snapshot."""
    connected = await stream.connect()
    await connected.read(blocks=1, idle_s=30)
    return connected


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=(pytest.mark.full, pytest.mark.timeout(300)))])
async def test_clients_that_connect_and_reset_leave_nothing(
    hasty: Served, worker: Worker, redis_client: Redis, count: int
) -> None:
    """F10: connections, files, subscriptions, also those of a stream that was never answered."""
    served = await hasty.started()
    task = await running(served, worker)
    (await opened(Resuming(served.url, f"/tasks/{task.id}/events"))).reset()
    before = await eventually(lambda: _settled(served), bool, within_s=60)
    idle = await eventually(lambda: subscriptions(redis_client), lambda found: found == 2)
    room = asyncio.Semaphore(50)

    async def connect_and_reset(number: int) -> None:
        async with room:
            stream = Resuming(served.url, f"/tasks/{task.id}/events")
            connected = await stream.connect()
            if number % 4:
                await connected.read(most=1, idle_s=60)
            connected.reset()

    await asyncio.gather(*map(connect_and_reset, range(count)))

    async def left() -> tuple[bool, int]:
        return open_files(served.process.pid) <= before + 17, await subscriptions(redis_client)

    assert await eventually(left, lambda found: found == (True, idle), within_s=30)
    async with client(served) as http:
        assert (await http.get(f"/tasks/{task.id}")).status_code == 200


async def _settled(served: Served) -> int:
    """Files when they have stayed as many for a moment."""
    before = open_files(served.process.pid)
    await asyncio.sleep(0.3)
    return before if open_files(served.process.pid) == before else 0


async def test_streams_whose_clients_have_gone_leave_no_task_watch_or_timer(
    gateway_of: Callable[..., Any], worker: Worker
) -> None:
    door = gateway_of()
    hub = door.gateway.hub
    async with client_of(door) as http:
        ids = [(await submit(http))["id"] for _ in range(5)]
    before = asyncio.all_tasks()
    gone = asyncio.Event()
    heads: list[Any] = []

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        heads.append(message["type"])

    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "http_version": "1.1"}
    paths = [f"/tasks/{ids[n % 5]}/events" if n % 2 else "/events" for n in range(100)]
    query = "&".join(f"task={task_id}" for task_id in ids).encode()
    requests = [
        asyncio.ensure_future(
            door({**scope, "path": path, "raw_path": path.encode(), "query_string": query}, receive, send)
        )
        for path in paths
    ]

    async def sent() -> int:
        return heads.count("http.response.body")

    await eventually(sent, lambda count: count >= 100)
    assert len(hub._watches) == 5
    gone.set()
    await asyncio.wait_for(asyncio.gather(*requests), 60)

    async def left() -> tuple[int, int, int]:
        return len(hub._watches), len(hub.pulse._members), len(asyncio.all_tasks() - before)

    await eventually(left, lambda found: found == (0, 0, 0))
    assert hub.pulse._timer is None


async def test_a_silent_stream_has_its_headers_at_once_and_pings(hasty: Served, worker: Worker) -> None:
    """F10: nothing waits for a first event, nothing is compressed."""
    served = await hasty.started()
    task = await running(served, worker)
    async with client(served) as http:
        for accepted in ("identity", "gzip, br"):
            asked = time.monotonic()
            headers = {"Accept-Encoding": accepted}
            async with http.stream("GET", f"/tasks/{task.id}/events", headers=headers) as answer:
                assert time.monotonic() - asked < 20
                assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
                assert answer.headers["cache-control"] == "no-cache, no-store, no-transform"
                assert answer.headers["x-accel-buffering"] == "no"
                assert "content-encoding" not in answer.headers
                pings = 0
                async for line in answer.aiter_lines():
                    pings += line.startswith(":")
                    if pings == 2:
                        break


def test_a_peer_that_has_vanished_is_given_up_within_two_pings() -> None:
    """The first is not acknowledged; the kernel gives it up before the second could be answered."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as peer:
        accepted, _ = listener.accept()
        with accepted:
            silence_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert peer.fileno() >= 0
    assert silence_ms == SILENT_PEER_MS <= EventStream.ping_s * 1000


async def test_a_client_that_stops_reading_is_let_go_and_holds_up_nobody(
    hasty: Served, worker: Worker, small_buffer: socket.socket
) -> None:
    served = await hasty.started()
    task = await running(served, worker)
    path = f"/tasks/{task.id}/events"
    small_buffer.connect(("127.0.0.1", served.port))
    reading = Resuming(served.url, path)
    connected = await opened(reading)
    small_buffer.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    for number in range(60):
        await worker.report(task, events=[("custom", b'{"n":%d,"x":"%s"}' % (number, b"y" * 200_000))])
        await connected.read(blocks=number + 2, idle_s=30)  # or who has no CPU for half a second stops reading, too

    await eventually(lambda: _gone(small_buffer, served), bool, within_s=40)
    await worker.finish(task)
    await connected.read(idle_s=30)
    numbers = [block.data["n"] for block in reading.blocks if block.name == "custom"]
    assert numbers == list(range(60))
    connected.reset()


@pytest.fixture
def small_buffer() -> Iterator[socket.socket]:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        yield connection


async def _gone(stuck: socket.socket, served: Served) -> bool:
    """Whether the gateway has let that connection go: its end is not among the established ones any more."""
    ports = f":{served.port:04X}", f":{stuck.getsockname()[1]:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    theirs = [line for line in lines if (line[1][-5:], line[2][-5:]) == ports]
    return all(line[3] != "01" for line in theirs)


@pytest.mark.parametrize("count", [20, pytest.param(1_000, marks=(pytest.mark.full, pytest.mark.timeout(200)))])
async def test_a_stop_ends_every_stream_cleanly_whoever_does_not_read(
    serve: Serve, worker: Worker, redis_client: Redis, count: int
) -> None:
    """F11: each has its last chunk and no false end; Redis connections are as many as with one stream."""
    served = await serve(grace_s=20)
    tasks = [await running(served, worker) for _ in range(10)]
    streams = [Resuming(served.url, f"/tasks/{tasks[n % 10].id}/events") for n in range(count)]
    stuck = socket.create_connection(("127.0.0.1", served.port))
    stuck.sendall(f"GET /tasks/{tasks[0].id}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    connections = await asyncio.gather(*map(opened, streams))
    clients = [one for one in await redis_client.client_list() if one["name"].startswith("taskgate-gateway")]
    assert len(clients) <= 17

    started = time.monotonic()
    following = asyncio.gather(*(connected.read(idle_s=30) for connected in connections))
    assert await served.stop() == 0
    assert time.monotonic() - started < 20
    await following
    for stream, connected in zip(streams, connections, strict=True):
        assert connected.ended, "the last chunk"
        assert "end" not in [block.name for block in stream.blocks]
        connected.reset()
    stuck.close()


async def test_a_second_signal_does_not_make_a_stop_worse(serve: Serve, worker: Worker) -> None:
    served = await serve()
    task = await running(served, worker)
    stream = Resuming(served.url, f"/tasks/{task.id}/events")
    connected = await opened(stream)
    served.process.terminate()
    served.process.terminate()
    await connected.read(idle_s=60)
    assert await served.ended() == 0
    assert "end" not in [block.name for block in stream.blocks]
    connected.reset()

"""`GET /tasks/{id}/events` against a real gateway process: everything once, in order, resumable to the event."""

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import httpx_sse
import pytest
from redis.asyncio import Redis

from taskgate.contract.models import Claimed
from taskgate.contract.store import Store
from tests.api.conftest import Served, Worker, submit
from tests.conftest import Server, eventually

Serve = Callable[..., Awaitable[Served]]


class Follower:
    """Collects a stream in the background."""

    def __init__(
        self, http: httpx.AsyncClient, task_id: str, headers: dict[str, str], query: str = "", *, path: str = ""
    ) -> None:
        self.events: list[httpx_sse.ServerSentEvent] = []
        self.response: httpx.Response | None = None
        self._running = asyncio.ensure_future(self._run(http, path or f"/tasks/{task_id}/events{query}", headers))

    async def _run(self, http: httpx.AsyncClient, url: str, headers: dict[str, str]) -> None:
        async with httpx_sse.aconnect_sse(http, "GET", url, headers=headers) as source:
            self.response = source.response
            async for event in source.aiter_sse():
                self.events.append(event)

    async def until(self, name: str) -> httpx_sse.ServerSentEvent:
        """The first event of that name, waiting for it."""

        async def found() -> httpx_sse.ServerSentEvent | None:
            if self._running.done():
                self._running.result()
            return next((event for event in self.events if event.event == name), None)

        event = await eventually(found, lambda event: event is not None)
        assert event is not None
        return event

    async def all(self) -> list[httpx_sse.ServerSentEvent]:
        await asyncio.wait_for(self._running, 60)
        return self.events

    @property
    def names(self) -> list[str]:
        return [event.event for event in self.events]

    async def hang_up(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


@pytest.fixture
async def served(shared_gateway: Served, worker: Worker) -> Served:
    return await shared_gateway.started()


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with client(served) as http:
        yield http


def client(served: Served) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=served.url, timeout=60, limits=httpx.Limits(max_connections=None))


def ids_of(events: list[httpx_sse.ServerSentEvent]) -> list[str]:
    """The ids as a browser would remember them, each once."""
    return list(dict.fromkeys(event.id for event in events if event.id))


async def eventful(http: httpx.AsyncClient, worker: Worker, count: int = 5) -> tuple[str, Claimed]:
    """A running task with some events of its own."""
    task = await submit(http)
    [claimed] = await worker.claim()
    for number in range(count):
        await worker.report(claimed, events=[("custom", b'{"name":"step","n":%d}' % number)])
    return task["id"], claimed


async def test_a_whole_life_is_told_in_order(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    stream = Follower(http, task["id"], {})
    snapshot = await stream.until("snapshot")
    assert snapshot.json()["status"] == "queued"
    assert 2_000 <= (snapshot.retry or 0) <= 4_000
    assert stream.response is not None
    assert stream.response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.response.headers["cache-control"] == "no-cache, no-store, no-transform"
    assert stream.response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in stream.response.headers

    [claimed] = await worker.claim()
    await stream.until("status")
    told = b'{"attempt":1,"current":1,"total":2,"percent":50.0,"at_ms":%d}' % (time.time() * 1000)
    await worker.report(claimed, progress=told)
    progress = await stream.until("progress")
    assert progress.json() == {"seq": 3, **json.loads(told)}, "as the kept one before the end says it"
    await worker.report(claimed, events=[("custom", b'{"name":"mine","x":"\xc3\xa9"}')])
    assert (await stream.until("custom")).json() == {"seq": 4, "name": "mine", "x": "é"}
    await worker.finish(claimed, result=b"1")
    events = await stream.all()

    assert stream.names == ["snapshot", "status", "progress", "custom", "status", "end"]
    assert [event.json()["seq"] for event in events] == [1, 2, 3, 4, 5, 5]
    end = events[-1].json()
    assert (end["status"], end["result_url"]) == ("succeeded", f"/tasks/{task['id']}/result")
    final = (await http.get(f"/tasks/{task['id']}")).json()
    assert end.pop("seq") == end["version"]
    assert end | {"progress": None} == final | {"progress": None}


async def test_stops_and_kills_are_told_and_keep_no_progress_from_being_told(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    task = await submit(http)
    [claimed] = await worker.claim()
    stream = Follower(http, task["id"], {})
    await stream.until("snapshot")
    stopping = ("stopping", b'{"signal":"SIGUSR1","reason":"timeout","grace_s":5.0}')
    progress = b'{"current":1,"total":2,"percent":50.0,"at_ms":%d}' % (time.time() * 1000)
    await worker.report(claimed, progress=progress, events=[stopping])
    assert (await stream.until("progress")).json()["percent"] == 50
    await worker.report(claimed, events=[("killed", b'{"signal":"SIGKILL","reason":"timeout"}')])
    await worker.finish(claimed, "failed", error=b'{"kind":"timeout","message":"m"}')
    await stream.all()

    assert stream.names == ["snapshot", "stopping", "progress", "killed", "status", "end"]


async def test_resuming_gives_each_later_event_once(http: httpx.AsyncClient, worker: Worker) -> None:
    """F09: from every id that was ever seen, by header and by query."""
    task_id, claimed = await eventful(http, worker)
    stream = Follower(http, task_id, {})
    await stream.until("snapshot")
    for number in range(3):
        await worker.report(claimed, events=[("custom", b'{"name":"late","n":%d}' % number)])
    await worker.finish(claimed)
    await stream.all()
    kept = [event.id for event in await worker.store.events(task_id)]
    for number, seen in enumerate(kept[:-1]):
        for headers, query in (({"Last-Event-ID": seen}, ""), ({}, f"?last_event_id={seen}"), ({}, f"?after={seen}")):
            again = Follower(http, task_id, headers, query)
            events = await again.all()
            assert ids_of(events)[-1] == kept[-1]
            assert [one for one in ids_of(events) if one != seen] == kept[number + 1 :]
            assert [event.json()["seq"] for event in events[:-1]] == list(range(number + 3, len(kept) + 2))
            assert (again.names[-1], "snapshot" in again.names, "gap" in again.names) == ("end", False, False)


async def test_a_client_that_misses_the_end_still_gets_it(http: httpx.AsyncClient, worker: Worker) -> None:
    """The last transition carries no id: a client that saw it and not the end comes back from before both."""
    task_id, claimed = await eventful(http, worker, count=1)
    await worker.finish(claimed)
    first = (await worker.store.events(task_id))[0].id
    events = await Follower(http, task_id, {"Last-Event-ID": first}).all()
    assert [event.event for event in events] == ["custom", "status", "end"]
    assert events[1].id == events[0].id
    assert events[2].id == (await worker.store.events(task_id))[-1].id


async def test_the_id_of_the_end_is_204(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id, claimed = await eventful(http, worker)
    await worker.finish(claimed)
    end = (await Follower(http, task_id, {}).all())[-1]
    done = await http.get(f"/tasks/{task_id}/events", headers={"Last-Event-ID": end.id})
    assert (done.status_code, done.content) == (204, b"")


async def test_after_a_redrive_the_end_is_an_event_like_others(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    [claimed] = await worker.claim()
    await worker.finish(claimed, "failed", error=b'{"kind":"exception"}')
    end = (await Follower(http, task["id"], {}).all())[-1]
    assert (await http.post(f"/tasks/{task['id']}/redrive")).status_code == 202
    stream = Follower(http, task["id"], {"Last-Event-ID": end.id})
    await stream.until("status")
    [claimed] = await worker.claim()
    await worker.finish(claimed)
    events = [event for event in await stream.all() if event.event != "snapshot"]
    assert [event.json().get("status") for event in events] == ["queued", "running", "succeeded", "succeeded"]
    whole = await Follower(http, task["id"], {"Last-Event-ID": (await worker.store.events(task["id"]))[0].id}).all()
    assert [event.json()["status"] for event in whole] == ["failed", "queued", "running", "succeeded", "succeeded"]


STRANGE = [
    "5-5",
    "1-0",
    "99999999999999-0",
    "18446744073709551616-0",
    "x",
    "-1",
    "1",
    "0-0",
    "*",
    "x" * 5_000,
    "1795967964877-0",
]


@pytest.mark.parametrize("seen", STRANGE, ids=lambda seen: seen[:22])
async def test_an_id_that_is_not_kept_gets_a_gap_and_a_snapshot(
    http: httpx.AsyncClient, worker: Worker, seen: str
) -> None:
    """F09: trimmed, foreign, malformed, future: never silent loss."""
    task_id, claimed = await eventful(http, worker)
    stream = Follower(http, task_id, {"Last-Event-ID": seen})
    await stream.until("snapshot")
    await worker.finish(claimed)
    await stream.all()
    assert stream.names == ["gap", "snapshot", *["custom"] * 5, "status", "end"]


async def test_an_empty_id_is_none(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id, claimed = await eventful(http, worker)
    await worker.finish(claimed)
    stream = Follower(http, task_id, {"Last-Event-ID": ""})
    await stream.all()
    assert stream.names == ["snapshot", *["custom"] * 5, "end"]


async def test_late_subscribers_get_the_whole_story(http: httpx.AsyncClient, worker: Worker) -> None:
    """The state now, and what no state shows: each event of the handler's own; unless they want none of the past."""
    task_id, claimed = await eventful(http, worker)
    late, live = Follower(http, task_id, {}), Follower(http, task_id, {}, "?from=now")
    for stream in (late, live):
        await stream.until("snapshot")
    await worker.report(claimed, events=[("custom", b'{"name":"step","n":5}')])
    await worker.finish(claimed)
    for stream in (late, live, Follower(http, task_id, {})):
        numbers = [event.json()["n"] for event in await stream.all() if event.event == "custom"]
        assert numbers == ([5] if stream is live else [0, 1, 2, 3, 4, 5])
        assert stream.names.count("snapshot") == 1
    assert (late.names[0], live.names[0]) == ("snapshot", "snapshot")
    assert (await http.get(f"/tasks/{task_id}/events?from=then")).status_code == 400


async def test_the_stage_of_a_retry_is_told_though_no_health_was(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id, claimed = await eventful(http, worker, count=0)
    kept = (await worker.store.events(task_id))[0].id
    streams = [Follower(http, task_id, {}), Follower(http, task_id, {"Last-Event-ID": kept})]
    await streams[0].until("snapshot")
    await worker.finish(claimed, "retry", max_attempts=2, retry_delay_ms=60_000, error=b'{"kind":"exception"}')
    for stream in streams:
        status = await stream.until("status")
        assert status.json()["status"] == "retrying"

        async def behind(stream: Follower = stream) -> list[httpx_sse.ServerSentEvent]:
            return stream.events[stream.names.index("status") + 1 :]

        [snapshot] = await eventually(behind, bool)
        assert (snapshot.event, snapshot.json()["stage"]) == ("snapshot", "waiting for the next attempt")
        assert snapshot.json()["scheduled_at"] is not None
        await stream.hang_up()


async def retried(http: httpx.AsyncClient, worker: Worker, events: int = 1) -> str:
    """A task whose first attempt failed, and whose second succeeded after some events of its own."""
    task_id, claimed = await eventful(http, worker, count=1)
    error = b'{"kind":"exception","message":"first"}'
    await worker.finish(claimed, "retry", max_attempts=2, error=error, retry_delay_ms=1)

    async def due() -> list[Claimed]:
        await worker.store.promote(0)
        return await worker.claim()

    [claimed] = await eventually(due, bool)
    for start in range(0, events, 100):
        await worker.report(claimed, events=[("custom", b"{}")] * min(100, events - start))
    await worker.finish(claimed)
    return task_id


async def test_from_the_start_every_kept_event_is_told(http: httpx.AsyncClient, worker: Worker) -> None:
    """Also those whose outcome the snapshot shows, such as the error of an attempt before."""
    task_id = await retried(http, worker)
    kept = await worker.store.events(task_id)
    for path in (f"/tasks/{task_id}/events?from=start", f"/events?task={task_id}&from=start"):
        told = await Follower(http, task_id, {}, path=path).all()
        first, *story, end = [event.event for event in told]
        assert (first, story, end) == ("snapshot", [event.name for event in kept], "end")
        assert [event.json()["seq"] for event in told[1:-1]] == [event.seq for event in kept]
        [retrying] = [event.json() for event in told if event.json().get("status") == "retrying"]
        assert retrying["error"]["message"] == "first"


async def test_from_the_start_of_what_was_trimmed_there_is_one_gap(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id = await retried(http, worker, 900)
    for path in (f"/tasks/{task_id}/events?from=start", f"/events?task={task_id}&from=start"):
        told = Follower(http, task_id, {}, path=path)
        await told.all()
        assert told.names[:2] == ["gap", "snapshot"]
        assert (told.names.count("gap"), told.names[-2:]) == (1, ["status", "end"])


async def test_a_fresh_stream_can_be_resumed_from_its_first_block(http: httpx.AsyncClient, worker: Worker) -> None:
    """Whatever it told of the past: the id says that everything up to now is known."""
    for count in (0, 3):
        task_id, claimed = await eventful(http, worker, count=count)
        stream = Follower(http, task_id, {})
        await eventually(functools.partial(_seen, stream), bool)
        await stream.hang_up()
        assert _last_id(stream) == (await worker.store.events(task_id))[-1].id
        await worker.finish(claimed)
        again = await Follower(http, task_id, {"Last-Event-ID": _last_id(stream)}).all()
        assert [event.event for event in again] == ["status", "end"]


async def _seen(stream: Follower) -> str:
    return _last_id(stream)


def _last_id(stream: Follower) -> str:
    return stream.events[-1].id if stream.events else ""


async def test_a_trimmed_history_is_a_gap_not_silence(http: httpx.AsyncClient, worker: Worker) -> None:
    """F09: three times as many events as are kept."""
    task_id, claimed = await eventful(http, worker, count=1)
    first = (await worker.store.events(task_id))[0].id
    for start in range(0, 1_500, 100):
        own = [("custom", b'{"name":"many","n":%d}' % number) for number in range(start, start + 100)]
        await worker.report(claimed, events=own)
    middle = (await worker.store.events(task_id, count=2_000))[-300].id
    await worker.finish(claimed)
    lost = Follower(http, task_id, {"Last-Event-ID": first})
    assert (await lost.all())[0].event == "gap"
    assert lost.names[:3] == ["gap", "snapshot", "custom"], "and then all that is kept"
    assert lost.names.count("gap") == 1
    events = await Follower(http, task_id, {"Last-Event-ID": middle}).all()
    numbers = [event.json()["n"] for event in events if event.event == "custom"]
    assert numbers == list(range(numbers[0], 1_500))
    assert len(numbers) == 299


async def test_many_events_at_once_all_arrive(http: httpx.AsyncClient, worker: Worker) -> None:
    """More than one read gives, to several streams of one task."""
    task_id, claimed = await eventful(http, worker, count=0)
    streams = [Follower(http, task_id, {}) for _ in range(5)]
    for stream in streams:
        await stream.until("snapshot")
    total = 0
    for _ in range(4):
        await worker.report(claimed, events=[("custom", b'{"n":%d}' % (total + n)) for n in range(100)])
        total += 100
    await worker.finish(claimed)
    for stream in streams:
        events = await stream.all()
        assert [event.json()["n"] for event in events if event.event == "custom"] == list(range(total))


async def test_a_change_of_health_is_shown(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id, claimed = await eventful(http, worker, count=0)
    stream = Follower(http, task_id, {})
    await stream.until("snapshot")
    await worker.report(claimed, health="stalled")

    async def shown() -> list[Any]:
        return [event.json()["health"] for event in stream.events if event.event == "snapshot"]

    assert await eventually(shown, lambda found: len(found) == 2) == [None, "stalled"]
    await worker.finish(claimed)
    await stream.all()


async def test_one_pubsub_connection_however_many_streams(
    http: httpx.AsyncClient, worker: Worker, redis_client: Any
) -> None:
    """And what streams held is given back when their clients have gone (F10)."""
    tasks = [(await submit(http))["id"] for _ in range(30)]

    async def gateways() -> list[Any]:
        return [one for one in await redis_client.client_list() if one["name"].startswith("taskgate-gateway")]

    async def subscribed() -> int:
        return sum(int(one["sub"]) for one in await gateways())

    idle = await eventually(subscribed, lambda count: count == 2)
    streams = [Follower(http, task_id, {}) for task_id in tasks for _ in range(4)]
    for stream in streams:
        await stream.until("snapshot")
    assert await subscribed() == idle + 30
    assert sum(int(one["sub"]) > 0 for one in await gateways()) == 1
    assert len(await gateways()) <= 17
    for stream in streams:
        await stream.hang_up()
    await eventually(subscribed, lambda count: count == idle)


async def test_streams_end_at_once_when_the_gateway_stops_and_resume_elsewhere(serve: Serve, worker: Worker) -> None:
    """F11: no false end, nothing missed."""
    patient = "import app.main; app.main.DRAIN_MAX_S = 60"
    served, other = await serve(before=patient, grace_s=120), await serve()
    async with client(served) as http, client(other) as elsewhere:
        tasks = [await eventful(http, worker) for _ in range(10)]
        streams = [Follower(http, task_id, {}) for task_id, _ in tasks for _ in range(5)]
        for stream in streams:
            await stream.until("snapshot")
        started = time.monotonic()
        assert await served.stop() == 0
        assert time.monotonic() - started < 40, "it has not waited for them"
        for stream in streams:
            await stream.all()
            assert "end" not in stream.names
        for task_id, claimed in tasks:
            await worker.report(claimed, events=[("custom", b'{"name":"meanwhile"}')])
            await worker.finish(claimed)
            seen = next(one.events[-1].id for one in streams if one.events[0].json()["id"] == task_id)
            events = await Follower(elsewhere, task_id, {"Last-Event-ID": seen}).all()
            assert [event.event for event in events] == ["custom", "status", "end"]


async def test_a_client_that_does_not_read_does_not_hold_the_stop(serve: Serve, worker: Worker) -> None:
    served = await serve(grace_s=8)
    async with client(served) as http:
        task_id, claimed = await eventful(http, worker, count=0)
        port = served.port
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(f"GET /tasks/{task_id}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await writer.drain()
        for _ in range(40):
            await worker.report(claimed, events=[("custom", json.dumps({"x": "y" * 200_000}).encode())])
        assert await served.stop() == 0
        writer.close()


async def test_a_stream_outlives_a_restart_of_redis(serve: Serve, own_server: Server) -> None:
    """F20: it stays open, and tells what happens once Redis is back."""
    served = await serve(url=own_server.url)
    async with client(served) as http:
        async with Redis.from_url(own_server.url, protocol=2) as before:
            worker = Worker(Store(before))
            await worker.publish()
            await worker.beat()
            task_id, claimed = await eventful(http, worker, count=0)
        stream = Follower(http, task_id, {})
        await stream.until("snapshot")
        own_server.stop()
        own_server.start("--appendonly", "yes", "--appendfsync", "always")
        async with Redis.from_url(own_server.url, protocol=2) as after:
            worker.store = Store(after)
            await worker.report(claimed, events=[("custom", b'{"name":"after"}')])
            await stream.until("custom")
            await worker.finish(claimed)
            await stream.all()
        assert stream.names == ["snapshot", "custom", "status", "end"]

"""The stream in this process, where what lies between two reads can be brought about."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from app.door import Door
from app.sse import Pulse
from app.stream import Stream
from taskgate.contract import keys
from taskgate.contract.errors import StoreUnavailable
from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Submission, TaskSpec
from tests.api.conftest import Worker


async def finished(worker: Worker, *events: str) -> tuple[str, list[str]]:
    """A task that has ended after events of those names; the ids of all its events."""
    task_id = new_task_id()
    spec = TaskSpec(id=task_id, type="any")
    submission = Submission(
        id=task_id,
        queue="default",
        type="any",
        tenant="default",
        priority=5,
        spec=f'{{"id":"{spec.id}","type":"any"}}'.encode(),
        payload=b"1",
    )
    await worker.store.submit([submission], worker.limits)
    [claimed] = await worker.claim()
    for name in events:
        await worker.report(claimed, events=[(name, b'{"name":"mine"}')])
    await worker.finish(claimed)
    return task_id, [event.id for event in await worker.store.events(task_id)]


async def names(door: Door, task_id: str, cursor: str | None) -> list[str]:
    stream = Stream(door.gateway.hub, task_id=task_id, tenant="default", cursor=cursor)
    return [
        line.removeprefix("event: ")
        for block in [block async for block in stream.blocks()]
        for line in block.decode().splitlines()
        if line.startswith("event: ")
    ]


async def test_what_the_snapshot_shows_is_not_told_again(gateway_of: Callable[..., Door], worker: Worker) -> None:
    """Transitions are in it; what the handler sent is not, and is told from the oldest kept on."""
    door = gateway_of()
    task_id, _ = await finished(worker, "custom", "progress", "custom")
    assert await names(door, task_id, None) == ["snapshot", "custom", "custom", "end"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 500])
async def test_a_long_log_is_read_in_pages(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Whatever the size of a page: each event once, and the end."""
    door = gateway_of()
    task_id, kept = await finished(worker, *["custom"] * 6)
    monkeypatch.setattr("app.hub.EVENTS_A_READ", count)
    assert await names(door, task_id, kept[0]) == ["custom"] * 6 + ["status", "end"]


async def test_a_stream_waits_while_redis_is_away(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = gateway_of()
    task_id, kept = await finished(worker, "custom")
    monkeypatch.setattr("app.hub.BACKUP_S", 0.01)
    monkeypatch.setattr(Pulse, "every_s", 0.01)
    real = door.gateway.store.news
    failures = 0

    async def failing(*args: Any, **named: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures <= 3:
            raise StoreUnavailable("away")
        return await real(*args, **named)

    monkeypatch.setattr(door.gateway.store, "news", failing)
    assert await names(door, task_id, kept[0]) == ["custom", "status", "end"]
    assert failures == 4


async def test_events_that_are_dropped_before_a_stream_has_read_them_are_a_gap(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis
) -> None:
    """More came between two reads than is kept: never silence."""
    door = gateway_of()
    task_id, kept = await finished(worker, *["custom"] * 50)
    assert "gap" not in await names(door, task_id, kept[0])
    await redis_client.xtrim(keys.events(0, task_id), maxlen=48, approximate=False)
    assert await names(door, task_id, kept[0]) == ["gap", "snapshot", *["custom"] * 47, "end"]
    assert "gap" not in await names(door, task_id, kept[10])


async def test_what_is_dropped_while_a_story_is_read_from_its_beginning_is_a_gap(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis
) -> None:
    """Its first page was whole, the second is not there any more."""
    door = gateway_of()
    task_id, _ = await finished(worker, *["custom"] * 250)
    blocks = Stream(door.gateway.hub, task_id=task_id, tenant="default", cursor=None).blocks()
    first = (await anext(blocks)).decode()
    assert (first.count("event: custom"), "event: gap" in first) == (99, False)
    await redis_client.xtrim(keys.events(0, task_id), maxlen=100, approximate=False)
    assert (await anext(blocks)).decode().startswith("event: gap")
    await blocks.aclose()


async def test_a_streams_events_are_read_and_made_once_for_all_who_are_equally_far(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = gateway_of()
    task_id, kept = await finished(worker, "custom")
    real, reads = door.gateway.store.news, 0

    async def counted(*args: Any, **named: Any) -> Any:
        nonlocal reads
        reads += 1
        return await real(*args, **named)

    monkeypatch.setattr(door.gateway.store, "news", counted)
    told = await asyncio.gather(*(names(door, task_id, kept[0]) for _ in range(20)))
    assert told == [["custom", "status", "end"]] * 20
    assert reads == 1

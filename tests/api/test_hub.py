"""The hub: all that is watched shares one connection for wake-ups, and reads; one's trouble is not everybody's."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from app.door import Door
from app.merged import Merged, Part
from app.sse import Pulse
from app.stream import Stream
from app.told import Place
from taskgate.contract import ids
from taskgate.contract.errors import StoreUnavailable
from tests.api.conftest import Worker, client_of, submit
from tests.conftest import eventually


async def test_who_goes_while_it_is_being_subscribed_cuts_nobody_off(
    gateway_of: Callable[..., Door], redis_client: Redis
) -> None:
    """A command that is given up midway ends its connection."""
    hub = gateway_of().gateway.hub

    async def subscribed() -> list[str]:
        return [one["id"] for one in await redis_client.client_list() if int(one["sub"])]

    async def watch() -> None:
        async with hub.watch(ids.new_task_id(), "default"):
            await asyncio.Event().wait()

    listening = asyncio.ensure_future(hub.run())
    try:
        before = await eventually(subscribed, lambda found: len(found) == 1)
        for turns in range(1, 12):
            watching = asyncio.ensure_future(watch())
            for _ in range(turns):
                await asyncio.sleep(0)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await eventually(lambda: redis_client.pubsub_channels("*changes*"), lambda found: found == [])
        assert await subscribed() == before
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_streams_that_come_and_go_together_are_subscribed_together(
    gateway_of: Callable[..., Door], redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a command for each, on a busy loop the last one waits for all the others: for seconds, at 100 a second."""
    hub = gateway_of().gateway.hub
    commands: list[tuple[Any, ...]] = []
    execute = PubSub.execute_command

    async def counted(pubsub: PubSub, *args: Any) -> None:
        commands.append(args)
        await execute(pubsub, *args)

    monkeypatch.setattr(PubSub, "execute_command", counted)
    enough = asyncio.Event()

    async def watch() -> None:
        async with hub.watch(ids.new_task_id(), "default"):
            await enough.wait()

    async def channels() -> int:
        return len(await redis_client.pubsub_channels("*changes*"))

    listening = asyncio.ensure_future(hub.run())
    try:
        await eventually(lambda: redis_client.pubsub_channels("*"), bool)
        commands.clear()
        watching = [asyncio.ensure_future(watch()) for _ in range(100)]
        await eventually(channels, lambda count: count == 100)
        enough.set()
        await asyncio.gather(*watching)
        await eventually(channels, lambda count: count == 0)
        assert len(commands) < 10
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_a_stream_waits_when_redis_goes_away_between_two_pages(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows that there is more to read, and must not ask again and again: nobody else would get a turn."""
    door = gateway_of()
    monkeypatch.setattr("app.hub.EVENTS_A_READ", 1)
    monkeypatch.setattr("app.hub.BACKUP_S", 0.01)
    monkeypatch.setattr(Pulse, "every_s", 0.01)
    async with client_of(door) as http:
        task_id = (await submit(http))["id"]
    [claimed] = await worker.claim()
    await worker.report(claimed, events=[("custom", b'{"name":"mine"}')] * 3)
    await worker.finish(claimed)
    real = door.gateway.store.news
    reads = 0

    async def failing(*args: Any, **named: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 2:
            raise StoreUnavailable("away")
        return await real(*args, **named)

    monkeypatch.setattr(door.gateway.store, "news", failing)
    stream = Stream(door.gateway.hub, task_id=task_id, tenant="default", cursor="0-0")
    told = b"".join([block async for block in stream.blocks()])
    assert (told.count(b"event: custom"), told.count(b"event: end")) == (3, 1)


async def test_what_was_read_of_one_task_is_not_lost_when_redis_goes_away_before_the_next(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a round is told, or it is read again."""
    door = gateway_of()
    monkeypatch.setattr("app.hub.BACKUP_S", 0.01)
    monkeypatch.setattr(Pulse, "every_s", 0.01)
    async with client_of(door) as http:
        task_ids = [(await submit(http))["id"] for _ in range(2)]
    for claimed in await worker.claim(2):
        await worker.report(claimed, events=[("custom", b'{"name":"mine"}')] * 40)
        await worker.finish(claimed)
    real = door.gateway.hub.kept
    looks = 0

    async def failing(task_id: str) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise StoreUnavailable("away")
        return await real(task_id)

    monkeypatch.setattr(door.gateway.hub, "kept", failing)
    stream = Merged(door.gateway.hub, "default", {task_id: Part(Place("1-0")) for task_id in task_ids})
    told = b"".join([block async for block in stream.blocks()])
    assert looks >= 3, "the second task's was asked for, and both again"
    assert (told.count(b"event: custom"), told.count(b"event: end")) == (80, 2)

"""The hub: wake-ups of all that is watched come over one connection, which everybody depends on."""

import asyncio
from collections.abc import Callable

from redis.asyncio import Redis

from app.door import Door
from taskgate.contract import ids
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

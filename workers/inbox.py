"""The inbox: what gateways and scripts tell supervisors by pub/sub. Only a hint; the beat's answer is the truth."""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from redis.asyncio import Redis

from taskgate.contract.script import AWAY

log = structlog.get_logger()

RECONNECT_S = 0.5


class Inbox:
    """One subscription, renewed after every break."""

    def __init__(self, redis: Redis, channels: Sequence[str], told: Callable[[str], None]) -> None:
        self._redis = redis
        self._channels = channels
        self._told = told

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self._listen()
            except AWAY as error:
                log.info("inbox reconnects", error=str(error))
                await asyncio.sleep(RECONNECT_S)

    async def _listen(self) -> None:
        async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(*self._channels)
            while True:
                message = await pubsub.get_message(timeout=None)
                if message is not None:
                    self._told(message["data"].decode())

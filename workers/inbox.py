"""The inbox: what gateways and scripts tell supervisors by pub/sub. Only a hint; the beat's answer is the truth."""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from redis.asyncio import Redis

from taskgate.contract.script import AWAY

log = structlog.get_logger()

RECONNECT_S = 0.5
SILENCE_S = 10.0
"""After that a ping: a link that was cut without a word looks like one on which nothing happens."""


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
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(*self._channels)
            silent = False
            while True:
                message = await pubsub.get_message(timeout=SILENCE_S)
                if message is None and silent:
                    raise ConnectionError("no answer to a ping")
                silent = message is None
                if message is None:
                    await pubsub.ping()
                elif message["type"] == "message":
                    self._told(message["data"].decode())

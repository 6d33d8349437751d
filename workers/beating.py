"""Health check of a worker container (`python -m workers.beating`): does a supervisor of this host beat?"""

import asyncio
import socket
import sys

from taskgate import settings
from taskgate.contract.connection import connect
from taskgate.contract.store import Store


async def beats(store: Store, host: str) -> bool:
    """Whether one of that host's supervisors has beaten within its lease, by Redis' clock."""
    now_ms = await store.now_ms()
    return any(info.host == host and now_ms - info.beat_ms < info.lease_ms for info in await store.workers())


async def _check() -> bool:
    redis = connect(settings.load(), "supervisor-beat")
    try:
        return await beats(Store(redis), socket.gethostname())
    finally:
        await redis.aclose()


if __name__ == "__main__":
    if not asyncio.run(_check()):
        sys.exit("no supervisor of this host has beaten within its lease")

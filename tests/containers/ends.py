"""Runs in a gateway's container, beside Redis: how often each task, named on standard input, has ended."""

import asyncio
import json
import sys

from taskgate import settings
from taskgate.contract.connection import connect
from taskgate.contract.states import FINAL
from taskgate.contract.store import Store


async def main() -> None:
    redis = connect(settings.load(), "gateway")
    store = Store(redis)
    for task_id in sys.stdin.read().split():
        [record] = await store.read([task_id])
        statuses = [json.loads(event.data)["status"] for event in await store.events(task_id) if event.name == "status"]
        ends = [each for each in statuses if each in FINAL]
        print(json.dumps([task_id, record and record.status, ends, record and record.attempt]))
    await redis.aclose()


asyncio.run(main())

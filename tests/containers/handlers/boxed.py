"""Handlers that reach the workers by a folder."""

import asyncio
import time

from taskgate import Attempt, handler


@handler("boxed.ticks", timeout_s=900)
async def ticks(payload: float, attempt: Attempt) -> int:
    """For so many seconds: five times a second, what time it is."""
    until, number = time.monotonic() + payload, 0
    while time.monotonic() < until:
        number += 1
        attempt.emit("tick", {"at": time.time()})
        await asyncio.sleep(0.2)
    return number


@handler("boxed.work", timeout_s=60, max_attempts=20)
def work(payload: float) -> float:
    """Holds a child for so many seconds; it may be killed any number of times."""
    time.sleep(payload)
    return payload

"""`demo.wait`: an async task that waits; hundreds of them share one process."""

import asyncio

from pydantic import BaseModel, Field

from taskgate import Attempt, handler


class WaitRequest(BaseModel, extra="forbid"):
    seconds: float = Field(ge=0, le=3600)
    steps: int = Field(default=10, ge=1, le=10_000)


@handler("demo.wait")
async def wait(payload: WaitRequest, attempt: Attempt) -> int:
    """Waits in equal steps on the event loop; returns their number."""
    attempt.progress(0, payload.steps, unit="steps", stage="waiting")
    for step in range(payload.steps):
        with attempt.waiting("the clock"):
            await asyncio.sleep(payload.seconds / payload.steps)
        attempt.progress(step + 1, payload.steps, unit="steps", stage="waiting")
    return payload.steps

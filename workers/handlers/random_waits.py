"""`demo.random_waits`: waits of random length, as a run of calls to another service has."""

import random
import time

from pydantic import BaseModel, Field

from taskgate import Attempt, handler


class RandomWaitsRequest(BaseModel, extra="forbid"):
    waits: int = Field(default=20, ge=1, le=10_000)
    max_ms: int = Field(default=500, ge=0, le=60_000)
    seed: int | None = Field(default=None, description="the same seed waits the same times")


class RandomWaits(BaseModel):
    waits: int
    total_ms: int
    longest_ms: int


@handler("demo.random_waits", timeout_s=600)
def random_waits(payload: RandomWaitsRequest, attempt: Attempt) -> RandomWaits:
    """Waits `waits` times for 0 to `max_ms` milliseconds each."""
    chance = random.Random(payload.seed)
    waits_ms = [chance.randint(0, payload.max_ms) for _ in range(payload.waits)]
    attempt.progress(0, payload.waits, unit="waits", stage="waiting")
    for number, wait_ms in enumerate(waits_ms, 1):
        with attempt.waiting("a slow service"):
            time.sleep(wait_ms / 1000)
        attempt.progress(number, payload.waits, unit="waits", stage="waiting", message=f"{wait_ms} ms")
    return RandomWaits(waits=payload.waits, total_ms=sum(waits_ms), longest_ms=max(waits_ms))

"""`demo.sleep`: holds a process for a while, as a call to something slow does."""

import time

from pydantic import BaseModel, Field

from taskgate import Attempt, handler


class SleepRequest(BaseModel, extra="forbid"):
    seconds: float = Field(ge=0, le=3600)


@handler("demo.sleep")
def sleep(payload: SleepRequest, attempt: Attempt) -> float:
    """Sleeps in one blocking call; returns the seconds it really took."""
    started = time.monotonic()
    with attempt.waiting(f"asleep for {payload.seconds} s"):
        time.sleep(payload.seconds)
    return round(time.monotonic() - started, 3)

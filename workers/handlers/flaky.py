"""`demo.flaky`: asks to be tried again a few times, then succeeds."""

from pydantic import BaseModel, Field

from taskgate import Attempt, Retry, handler


class FlakyRequest(BaseModel, extra="forbid"):
    succeed_at: int = Field(default=2, ge=1, le=20, description="the attempt that succeeds")
    after_s: float = Field(default=0.5, ge=0, le=60, description="when to be tried again")


@handler("demo.flaky", max_attempts=20)
def flaky(payload: FlakyRequest, attempt: Attempt) -> int:
    """Returns the number of the attempt that succeeded."""
    if attempt.number < payload.succeed_at:
        raise Retry(payload.after_s)
    return attempt.number

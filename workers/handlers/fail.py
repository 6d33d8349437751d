"""`demo.fail`: raises, always, some frames deep: what a dead letter shows."""

from typing import NoReturn

from pydantic import BaseModel, Field

from taskgate import Attempt, handler


class FailRequest(BaseModel, extra="forbid"):
    order: int = Field(default=42, description="number that the error names")


class OrderError(Exception):
    """An order that cannot be billed."""


@handler("demo.fail", max_attempts=2, retry_base_s=0.5, retry_max_s=1)
def fail(payload: FailRequest, attempt: Attempt) -> None:
    """Raises an error that was caused by another one."""
    attempt.progress(1, 3, unit="steps", stage="looking up the price")
    try:
        _bill({"order": payload.order})
    except KeyError as error:
        raise OrderError(f"order {payload.order} cannot be billed") from error


def _bill(order: dict[str, int]) -> NoReturn:
    raise KeyError(f"no price in {sorted(order)}")

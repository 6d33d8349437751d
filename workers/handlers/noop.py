"""`demo.noop`: does nothing; what the benchmarks count."""

from typing import Any

from taskgate import Attempt, handler


@handler("demo.noop")
def noop(payload: Any, attempt: Attempt) -> None:
    """Does nothing."""

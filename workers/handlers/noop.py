"""`demo.noop`: does nothing; what the benchmarks count."""

from taskgate import Attempt, handler


@handler("demo.noop")
def noop(payload: None, attempt: Attempt) -> None:
    """Does nothing."""

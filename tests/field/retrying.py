"""Handlers that all fail together, for F24."""

from taskgate import Attempt, handler
from tests.system.jobs import cpu, stamp

__all__ = ["cpu"]


@handler("together", max_attempts=6, retry_base_s=1)
def together(payload: None, attempt: Attempt) -> None:
    """Its dependency is down."""
    stamp("start", attempt)
    raise ConnectionError("the dependency is down")


@handler("slowly", max_attempts=2, retry_base_s=60)
def slowly(payload: None, attempt: Attempt) -> None:
    stamp("start", attempt)
    raise ConnectionError("the dependency is down")

"""Handlers that leave nobody else a turn."""

import re
import time

from taskgate import Attempt, handler
from tests.system.jobs import stamp


def power(exponent: int) -> int:
    return int(7**exponent) & 1


def backtrack(letters: int) -> int:
    return int(re.match(r"(a+)+$", "a" * letters + "b") is None)


CALLS = {"power": power, "backtrack": backtrack}


@handler("holds_gil", max_attempts=3, retry_base_s=0.05)
def holds_gil(payload: dict[str, int], attempt: Attempt) -> int:
    """One C call; `payload` is the call's name and how much."""
    [(name, size)] = payload.items()
    stamp("start", attempt)
    result = CALLS[name](size)
    stamp("end", attempt)
    return result


@handler("blocks_loop", max_attempts=3, retry_base_s=0.05)
async def blocks_loop(payload: dict[str, int], attempt: Attempt) -> None:
    stamp("start", attempt)
    time.sleep(payload["ms"] / 1000)  # noqa: ASYNC251 - that is what it is for
    stamp("end", attempt)


@handler("spins", max_attempts=3, retry_base_s=0.05)
def spins(payload: dict[str, int], attempt: Attempt) -> None:
    stamp("start", attempt)
    until = time.monotonic() + payload["ms"] / 1000
    while time.monotonic() < until:
        pass
    stamp("end", attempt)

"""Handlers that are followed: one that tells much, one that says nothing."""

import time

from taskgate import Attempt, handler


@handler("chatty")
def chatty(payload: dict[str, int], attempt: Attempt) -> int:
    """`events` of its own, as many a second as pass without loss."""
    for n in range(payload["events"]):
        attempt.emit("word", {"n": n})
        if n % 50 == 49:
            time.sleep(0.3)
    return payload["events"]


@handler("silent")
def silent(payload: dict[str, float], attempt: Attempt) -> None:
    time.sleep(payload["s"])

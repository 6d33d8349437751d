"""Handlers that are followed: one that tells much, one that says nothing, one that waits."""

import time
from pathlib import Path
from typing import Any

from taskgate import Attempt, handler


@handler("chatty")
def chatty(payload: dict[str, Any], attempt: Attempt) -> int:
    """`events` of its own, as many a second as pass without loss; `until`: then waits for a file of that name."""
    for n in range(payload["events"]):
        attempt.emit("word", {"n": n})
        if n % 50 == 49:
            time.sleep(0.4)
    if "until" in payload:
        wait_for(payload["until"])
    return int(payload["events"])


@handler("silent")
def silent(payload: None, attempt: Attempt) -> None:
    """In one sleep: of a task that looks for something now and then, changes of its health are told."""
    time.sleep(600)


@handler("patient")
def patient(payload: str, attempt: Attempt) -> None:
    """Waits for a file of that name."""
    wait_for(payload)


def wait_for(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.01)

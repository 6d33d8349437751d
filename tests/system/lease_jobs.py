"""Handlers that say all the time that they run: what goes on after a takeover shows. Loaded by `ticking` rigs."""

import asyncio
import os
import select
import time
from pathlib import Path
from typing import Any

from taskgate import Attempt, Retry, handler

EVERY_S = 0.001


class Ticks:
    """Appends attempt, boot clock in ns and pid to a file of the task."""

    def __init__(self, attempt: Attempt) -> None:
        folder = Path(os.environ["STAMPS"]).parent / "ticks"
        folder.mkdir(exist_ok=True)
        self._fd = os.open(folder / attempt.id, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._attempt = attempt.number

    def tick(self) -> None:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(self._fd, f"{self._attempt} {now} {os.getpid()}\n".encode())

    def close(self) -> None:
        os.close(self._fd)


@handler("ticks", max_attempts=100, retry_base_s=0.05)
def ticks(payload: dict[str, Any], attempt: Attempt) -> int:
    """Ticks for `ms`, after the first attempt for `then_ms` and until a file `then_until` is there."""
    until = time.monotonic() + _seconds(payload, attempt)
    file = Path(payload.get("then_until", "/")) if attempt.number > 1 else Path("/")
    told = Ticks(attempt)
    told.tick()
    while time.monotonic() < until or not file.exists():
        select.select([], [], [], EVERY_S)  # libfaketime breaks time.sleep
        told.tick()
    told.close()
    return attempt.number


@handler("aticks", max_attempts=100, retry_base_s=0.05)
async def aticks(payload: dict[str, int], attempt: Attempt) -> int:
    until = time.monotonic() + _seconds(payload, attempt)
    told = Ticks(attempt)
    told.tick()
    while time.monotonic() < until:
        await asyncio.sleep(EVERY_S)
        told.tick()
    told.close()
    return attempt.number


@handler("talks", max_attempts=100, retry_base_s=0.05)
def talks(payload: dict[str, int], attempt: Attempt) -> int:
    """Ticks like `ticks`, and writes in every way that an attempt can."""
    until = time.monotonic() + _seconds(payload, attempt)
    told, n = Ticks(attempt), 0
    while time.monotonic() < until:
        n += 1
        attempt.progress(n, stage=f"attempt {attempt.number}")
        if n <= 40:  # more than a frozen supervisor's socket holds would stop the handler
            attempt.checkpoint({"attempt": attempt.number})
            attempt.emit("said", {"attempt": attempt.number})
        told.tick()
        select.select([], [], [], 0.05)
    told.close()
    return attempt.number


@handler("again", max_attempts=2)
def again(payload: dict[str, float], attempt: Attempt) -> int:
    """Asks for one retry, `after_s` later."""
    told = Ticks(attempt)
    told.tick()
    told.close()
    if attempt.number == 1:
        raise Retry(payload["after_s"])
    return attempt.number


def _seconds(payload: dict[str, Any], attempt: Attempt) -> float:
    return float(payload["ms"] if attempt.number == 1 else payload.get("then_ms", payload["ms"])) / 1000

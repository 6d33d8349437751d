"""What chaos submits. Each attempt writes down, in a file per process, when it ran: the evidence against us."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from taskgate import Attempt, Fail, Retry, handler

STAMPS = "CHAOS_STAMPS"
"""Environment variable that names the folder of the stamps."""
TICK_S = 0.005


def stamp(word: str, attempt: Attempt) -> None:
    """One line in one write: word, task id, attempt, boot clock in ns."""
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with Path(os.environ[STAMPS], str(os.getpid())).open("ab", buffering=0) as file:
        file.write(f"{word} {attempt.id} {attempt.number} {now}\n".encode())


@contextlib.contextmanager
def stamped(attempt: Attempt) -> Iterator[None]:
    stamp("start", attempt)
    try:
        yield
    finally:
        stamp("end", attempt)


def tick_for(ms: float, attempt: Attempt, *, busy: bool) -> None:
    until = time.monotonic() + ms / 1000
    while time.monotonic() < until:
        if busy:
            sum(range(100_000))
        else:
            time.sleep(TICK_S)
        stamp("tick", attempt)
        attempt.progress(ms - 1000 * (until - time.monotonic()), ms, unit="ms")


@handler("chaos.cpu", max_attempts=30, retry_base_s=0.05)
def cpu(payload: dict[str, int], attempt: Attempt) -> str:
    with stamped(attempt):
        tick_for(payload["ms"], attempt, busy=True)
    return "done"


@handler("chaos.sleep", max_attempts=30, retry_base_s=0.05)
def sleep(payload: dict[str, int], attempt: Attempt) -> str:
    with stamped(attempt):
        tick_for(payload["ms"], attempt, busy=False)
    return "done"


@handler("chaos.wait", max_attempts=30, retry_base_s=0.05)
async def wait(payload: dict[str, int], attempt: Attempt) -> str:
    with stamped(attempt):
        until = time.monotonic() + payload["ms"] / 1000
        while time.monotonic() < until:
            await asyncio.sleep(4 * TICK_S)
            stamp("tick", attempt)
    return "done"


@handler("chaos.block", max_attempts=30, retry_base_s=0.05)
async def block(payload: dict[str, int], attempt: Attempt) -> str:
    """A sync wait in an event loop: its neighbours stand still."""
    with stamped(attempt):
        tick_for(payload["ms"], attempt, busy=False)
    return "done"


@handler("chaos.raise", max_attempts=3, retry_base_s=0.05)
def raises(payload: dict[str, int], attempt: Attempt) -> None:
    with stamped(attempt):
        raise ValueError("as asked")


@handler("chaos.retry", max_attempts=30, retry_base_s=0.05)
def retry(payload: dict[str, int], attempt: Attempt) -> str:
    with stamped(attempt):
        if attempt.number < payload["times"]:
            raise Retry(0.05)
    return "done"


@handler("chaos.fail")
def fail(payload: dict[str, int], attempt: Attempt) -> None:
    with stamped(attempt):
        raise Fail("as asked")


@handler("chaos.die", max_attempts=2, retry_base_s=0.05)
def die(payload: dict[str, int], attempt: Attempt) -> None:
    _die(payload, attempt)


@handler("chaos.die_async", max_attempts=2, retry_base_s=0.05)
async def die_async(payload: dict[str, int], attempt: Attempt) -> None:
    _die(payload, attempt)


def _die(payload: dict[str, int], attempt: Attempt) -> None:
    """By the signal `payload` names, or by leaving with code 7."""
    stamp("start", attempt)
    stamp("end", attempt)
    if payload["signal"]:
        signal.signal(payload["signal"], signal.SIG_DFL) if payload["signal"] != signal.SIGKILL else None
        os.kill(os.getpid(), payload["signal"])
        time.sleep(60)
    os._exit(7)


@handler("chaos.hang", max_attempts=1, timeout_s=0.5)
def hang(payload: dict[str, int], attempt: Attempt) -> None:
    with stamped(attempt):
        tick_for(60_000, attempt, busy=False)


@handler("chaos.stubborn", max_attempts=1, timeout_s=0.5)
def stubborn(payload: dict[str, int], attempt: Attempt) -> None:
    """Has a child of its own and takes no hint."""
    stamp("start", attempt)
    subprocess.Popen(["sleep", "600"])
    while True:
        with contextlib.suppress(BaseException):
            tick_for(60_000, attempt, busy=False)


@handler("chaos.leave", max_attempts=30, retry_base_s=0.05)
def leave(payload: dict[str, int], attempt: Attempt) -> str:
    """Leaves a process behind."""
    with stamped(attempt):
        subprocess.Popen(["sleep", "600"])
    return "done"


@handler("chaos.parent", max_attempts=30, retry_base_s=0.05)
def parent(payload: dict[str, int], attempt: Attempt) -> list[str]:
    with stamped(attempt):
        tick_for(payload["ms"], attempt, busy=False)
        return [attempt.submit("chaos.cpu", {"ms": 5}), attempt.submit("chaos.wait", {"ms": 20})]

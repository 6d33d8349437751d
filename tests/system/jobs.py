"""Handlers for system tests. Each attempt leaves stamps of the boot clock in the file named by STAMPS."""

import asyncio
import itertools
import os
import random
import threading
import time
from pathlib import Path

from taskgate import Attempt, Fail, Retry, handler


def stamp(kind: str, attempt: Attempt) -> None:
    """One atomic line: kind, task id, attempt, boot clock in ns, pid."""
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with Path(os.environ["STAMPS"]).open("ab", buffering=0) as file:
        file.write(f"{kind} {attempt.id} {attempt.number} {now} {os.getpid()}\n".encode())


@handler("cpu", max_attempts=30, retry_base_s=0.05)
def cpu(payload: dict[str, int], attempt: Attempt) -> int:
    """How often it has looked at the clock."""
    stamp("start", attempt)
    until = time.perf_counter() + payload["ms"] / 1000
    n = 1
    while time.perf_counter() < until:
        n += 1
    stamp("end", attempt)
    return n


@handler("wait", max_attempts=30, retry_base_s=0.05)
async def wait(payload: dict[str, int], attempt: Attempt) -> str:
    stamp("start", attempt)
    await asyncio.sleep(payload["ms"] / 1000)
    stamp("end", attempt)
    return "waited"


@handler("raises", max_attempts=2, retry_base_s=0.05)
def raises(payload: dict[str, int], attempt: Attempt) -> None:
    stamp("start", attempt)
    stamp("end", attempt)
    if payload["n"] % 2:
        raise ValueError("as asked")
    raise Retry(0.05)


@handler("exits", max_attempts=2, retry_base_s=0.05)
def exits(payload: dict[str, int], attempt: Attempt) -> None:
    stamp("start", attempt)
    stamp("end", attempt)
    os._exit(7)


@handler("progress", max_attempts=30, retry_base_s=0.05)
def progress(payload: dict[str, int], attempt: Attempt) -> int:
    stamp("start", attempt)
    for n in range(payload["steps"]):
        attempt.progress(n, payload["steps"], unit="step", stage="stepping")
    stamp("end", attempt)
    return payload["steps"]


@handler("hog")
def hog(payload: dict[str, int], attempt: Attempt) -> int:
    """One C call that never lets go of the GIL; the longest time in ms for which another thread made no step."""
    steps = [time.monotonic()]
    stop = threading.Event()

    def step() -> None:
        while not stop.wait(0.001):
            steps.append(time.monotonic())

    thread = threading.Thread(target=step)
    thread.start()
    stamp("start", attempt)
    sum(range(payload["iterations"]))
    stamp("end", attempt)
    stop.set()
    thread.join()
    steps.append(time.monotonic())
    return round(max(later - earlier for earlier, later in itertools.pairwise(steps)) * 1000)


@handler("sleeper", max_attempts=30, retry_base_s=0.05)
def sleeper(payload: dict[str, int], attempt: Attempt) -> int:
    stamp("start", attempt)
    for n in range(payload["ms"] // 10):
        attempt.progress(n * 10, payload["ms"], unit="ms")
        time.sleep(0.01)
    stamp("end", attempt)
    return attempt.number


@handler("until", max_attempts=30, retry_base_s=0.05)
def until(payload: dict[str, str], attempt: Attempt) -> None:
    """Runs until that file is there."""
    stamp("start", attempt)
    while not Path(payload["file"]).exists():
        time.sleep(0.01)
    stamp("end", attempt)


@handler("parent")
def parent(payload: dict[str, int], attempt: Attempt) -> list[str]:
    """Submits one task as plainly as can be, and one with every option."""
    plain = attempt.submit("cpu", {"ms": 1})
    times = {"delay_s": 0.01, "timeout_s": 60.0, "max_attempts": 2}
    keys = {"unique_key": "only", "on_conflict": "replace", "concurrency_key": "few"}
    full = attempt.submit("cpu", {"ms": 1}, priority=9, metadata={"a": 1}, **times, **keys)  # type: ignore[arg-type]
    return [plain, full]


@handler("again")
def again(payload: dict[str, int], attempt: Attempt) -> None:
    """Submits its own successor so often."""
    stamp("start", attempt)
    if payload["n"]:
        attempt.submit("again", {"n": payload["n"] - 1}, unique_key="again", delay_s=0.05)


@handler("tells")
def tells(payload: dict[str, int], attempt: Attempt) -> None:
    for n in range(payload["n"]):
        attempt.emit("told", {"n": n})
        time.sleep(0.05)


@handler("fails", max_attempts=1)
def fails(payload: dict[str, int], attempt: Attempt) -> None:
    raise Fail("as asked")


@handler("stubborn", max_attempts=1)
def stubborn(payload: dict[str, int], attempt: Attempt) -> None:
    stamp("start", attempt)
    while True:
        try:
            time.sleep(random.random())
        except BaseException:  # noqa: BLE001 - that is what it is for
            continue


@handler("steps", retry_base_s=0.01)
def steps(payload: dict[str, int], attempt: Attempt) -> None:
    """Ten, of which the first attempt does five."""
    for n in range(attempt.resume_from or 0, 10):
        attempt.progress(n, 10)
        attempt.checkpoint(n)
        if n == 5 and attempt.number == 1:
            raise RuntimeError("half way")
        time.sleep(payload["ms"] / 1000)

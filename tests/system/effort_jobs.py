"""Handlers whose effort is known, and that say what is true of them."""

import asyncio
import gc
import json
import os
import resource
import threading
import time
import zlib
from pathlib import Path
from typing import Any

from taskgate import Attempt, handler


def told(attempt: Attempt) -> Path:
    """Where a task says what is true of it, for tests to compare."""
    return Path(f"{os.environ['STAMPS']}.{attempt.id}")


class Truth:
    """Boot clock and time on the run queue of this thread, every 50 ms, one line each."""

    def __init__(self, attempt: Attempt) -> None:
        self._file = told(attempt).open("w", buffering=1)
        self._next_s = 0.0

    def say(self) -> None:
        if (now_s := time.monotonic()) >= self._next_s:
            self._next_s = now_s + 0.05
            waited = Path("/proc/thread-self/schedstat").read_text().split()[1]
            self._file.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {waited}\n")


@handler("busy", max_attempts=1)
def busy(payload: Any, attempt: Attempt) -> None:
    truth = Truth(attempt)
    while True:
        truth.say()


@handler("collects", max_attempts=1)
def collects(payload: dict[str, int], attempt: Attempt) -> float:
    """Millions of objects that refer to each other, collected for as long as asked; the pauses in ms."""
    truth = Truth(attempt)
    before: list[Any] = []
    for _ in range(payload["objects"]):
        before = [before, None]
        truth.say()
    began = paused = 0.0

    def count(phase: str, _: dict[str, int]) -> None:
        nonlocal began, paused
        if phase == "start":
            began = time.perf_counter()
        else:
            paused += time.perf_counter() - began

    gc.callbacks.append(count)
    ends_at = time.monotonic() + payload["ms"] / 1000
    while time.monotonic() < ends_at:
        gc.collect()
        truth.say()
    gc.callbacks.remove(count)
    while before:  # else the end of so long a chain would be a recursion without end
        before = before[0]
    return paused * 1000


@handler("sleeps", max_attempts=1)
def sleeps(payload: Any, attempt: Attempt) -> None:
    time.sleep(600)


@handler("speaks", max_attempts=1)
def speaks(payload: Any, attempt: Attempt) -> None:
    """Five times a second, and never of progress."""
    for n in range(3000):
        (attempt.emit, attempt.checkpoint, print, attempt.log.info)[n % 4]("word")
        time.sleep(0.2)


@handler("waits", max_attempts=1)
def waits(payload: Any, attempt: Attempt) -> None:
    with attempt.waiting("the printer"):
        time.sleep(600)


@handler("asleeps", max_attempts=1)
async def asleeps(payload: Any, attempt: Attempt) -> None:
    await asyncio.sleep(600)


@handler("awaits", max_attempts=9)
async def awaits(payload: Any, attempt: Attempt) -> int:
    """Waits in its first attempt."""
    if attempt.number == 1:
        with attempt.waiting("another supervisor"):
            await asyncio.sleep(600)
    return attempt.number


@handler("abusy", max_attempts=1)
async def abusy(payload: Any, attempt: Attempt) -> None:
    while True:
        sum(range(1000))
        await asyncio.sleep(0)


@handler("burns", max_attempts=1)
def burns(payload: dict[str, int], attempt: Attempt) -> float:
    """CPU time that it used, in ms, as the kernel says."""

    def used_ms() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return (usage.ru_utime + usage.ru_stime) * 1000

    before, n = used_ms(), 0
    while used_ms() - before < payload["ms"]:
        n += sum(range(1000))
    return used_ms() - before


def checked(n: int) -> dict[str, Any]:
    """A progress in which every part proves the others."""
    text = str(n)
    return {"total": n + 0.5, "unit": text, "stage": text * 3, "message": f"{text * 9} {zlib.crc32(text.encode())}"}


@handler("many_threads", max_attempts=1)
def many_threads(payload: dict[str, Any], attempt: Attempt) -> None:
    """For `ms`, once the file `after` is there."""
    while not Path(payload["after"]).exists():
        time.sleep(0.01)
    ends_at = time.monotonic() + payload["ms"] / 1000

    def report(n: int) -> None:
        while time.monotonic() < ends_at:
            n = (n * 7919 + 1) % 100_003
            attempt.progress(n, **checked(n))

    threads = [threading.Thread(target=report, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@handler("reports", max_attempts=1)
def reports(payload: dict[str, int], attempt: Attempt) -> None:
    ends_at, n = time.monotonic() + payload["ms"] / 1000, 0
    while time.monotonic() < ends_at:
        n += 1
        attempt.progress(n)
    attempt.progress(payload["last"], payload["last"])


@handler("emits", max_attempts=1)
def emits(payload: dict[str, Any], attempt: Attempt) -> int:
    """So many events of so many bytes, one every so many ms."""
    for n in range(payload["count"]):
        attempt.emit("token", {"i": n, "text": "x" * payload["bytes"]})
        time.sleep(payload["every_ms"] / 1000)
    return int(payload["count"])


@handler("saves", max_attempts=2, retry_base_s=0.01)
def saves(payload: dict[str, Any], attempt: Attempt) -> Any:
    """Checkpoints without end in its first attempt, then says from where it resumed."""
    if attempt.number > 1:
        return attempt.resume_from
    path = told(attempt)
    unfinished = path.with_name(f"{path.name}.unfinished")
    for n in range(1, 10**9):
        attempt.checkpoint({"n": n, "ballast": "x" * payload.get("bytes", 0)})
        unfinished.write_text(json.dumps([n, os.getpid()]))
        unfinished.replace(path)
        if n == payload.get("raises_at"):
            raise ValueError("as asked")
        time.sleep(payload.get("every_ms", 0) / 1000)
    return None


@handler("dies", max_attempts=1)
def dies(payload: dict[str, int], attempt: Attempt) -> None:
    burns({"ms": payload["ms"]}, attempt)
    attempt.progress(7, 10, stage="last words")
    os.kill(os.getpid(), 9)


@handler("deaf_when_stopped", max_attempts=1, timeout_s=3)
def stubborn(payload: Any, attempt: Attempt) -> None:
    while True:
        try:
            time.sleep(1)
        except BaseException:  # noqa: BLE001 - that is what it is for
            continue


@handler("quick")
def quick(payload: Any) -> int:
    return 1

"""Handlers that are found where they are."""

import asyncio
import ctypes
import faulthandler
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

from taskgate import Attempt, handler
from workers.dumps import STACK_SIGNAL


@handler("stands")
def stands(payload: str, attempt: Attempt) -> None:
    """In `inner`, beside a thread, until a file is there."""
    standing = threading.Event()
    threading.Thread(target=beside, args=[payload, standing.set]).start()
    standing.wait()
    outer(payload, attempt)


def outer(until: str, attempt: Attempt) -> None:
    inner(until, attempt)


def inner(until: str, attempt: Attempt) -> None:
    attempt.progress(os.getpid())
    while not Path(until).exists():
        time.sleep(0.01)


def beside(until: str, tell: Callable[[], object]) -> None:
    tell()
    while not Path(until).exists():
        time.sleep(0.01)


@handler("deep")
def deep(payload: int, attempt: Attempt) -> None:
    deeper(payload, attempt)


def deeper(n: int, attempt: Attempt) -> None:
    if n:
        deeper(n - 1, attempt)
    attempt.progress(1)
    time.sleep(60)


@handler("takes_the_signal")
def takes_the_signal(payload: Any, attempt: Attempt) -> None:
    signal.signal(STACK_SIGNAL, signal.SIG_DFL)
    attempt.progress(1)
    time.sleep(60)


@handler("blocks_the_signal")
def blocks_the_signal(payload: Any, attempt: Attempt) -> None:
    """In its main thread, or in all that it has."""
    if payload == "main":
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [STACK_SIGNAL])
    attempt.progress(1)
    time.sleep(60)


@handler("has_signals_of_its_own")
def has_signals_of_its_own(payload: Any, attempt: Attempt) -> None:
    """Any that has a name."""

    def fail(number: int, _frame: object) -> None:
        raise RuntimeError(f"nobody has asked for {number}")

    for each in signal.Signals:
        if each not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1):
            signal.signal(each, fail)
    attempt.progress(1)
    time.sleep(60)


@handler("async.stands")
async def async_stands(payload: str, attempt: Attempt) -> None:
    """Awaits two tasks, one in a generator and one in a thread, through coroutines and an awaitable of its own."""
    walk = asyncio.create_task(walks(), name="walk")
    standing = asyncio.Event()
    call = asyncio.create_task(calls(payload, standing), name="call")
    asyncio.create_task(idles(), name="idle")  # noqa: RUF006
    await standing.wait()
    attempt.progress(1)
    await Own(asyncio.gather(walk, call))


async def walks() -> None:
    async for _ in steps():
        pass


async def steps() -> AsyncIterator[int]:
    await asyncio.sleep(60)
    yield 1


async def calls(until: str, standing: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    await asyncio.to_thread(beside, until, lambda: loop.call_soon_threadsafe(standing.set))


async def idles() -> None:
    await asyncio.sleep(60)


class Own:
    def __init__(self, awaited: Awaitable[Any]) -> None:
        self._awaited = awaited

    def __await__(self) -> Generator[Any, None, Any]:
        return (yield from self._awaited.__await__())


@handler("async.neighbour")
async def async_neighbour(payload: Any, attempt: Attempt) -> None:
    attempt.progress(1)
    await neighbours_secret()


async def neighbours_secret() -> None:
    await asyncio.sleep(60)


@handler("async.holds")
async def async_holds(payload: float, attempt: Attempt) -> None:
    attempt.progress(1)
    await asyncio.sleep(0)
    holds_the_loop(payload, attempt)


def holds_the_loop(seconds: float, attempt: Attempt) -> None:
    attempt.progress(2)
    time.sleep(seconds)


@handler("async.swallows_elsewhere")
async def async_swallows(payload: Any, attempt: Attempt) -> None:
    """Asked to stop, it goes on elsewhere."""
    attempt.progress(1)
    while True:
        try:
            await before_the_stop()
        except asyncio.CancelledError:
            await after_the_stop()


async def before_the_stop() -> None:
    await asyncio.sleep(60)


async def after_the_stop() -> None:
    await asyncio.sleep(60)


@handler("async.segfaults")
async def async_segfaults(payload: str, attempt: Attempt) -> None:
    """Itself, or in a thread."""
    await asyncio.sleep(0)
    if payload == "itself":
        segfault()
    await asyncio.to_thread(segfault)


@handler("segfaults")
def segfaults(payload: Any) -> None:
    segfault()


def segfault() -> None:
    ctypes.string_at(0)


def _only(source: str, n: int) -> Any:
    """A function whose name no other task's stack may show."""
    names: dict[str, Any] = {"asyncio": asyncio, "time": time}
    exec(source.replace("only", f"only_{n}"), names)
    return names[f"only_{n}"]


@handler("only")
def only(payload: int) -> None:
    _only("def only():\n    for _ in range(4): time.sleep(0.005)", payload)()


@handler("async.only")
async def async_only(payload: int) -> None:
    """Every tenth holds the loop for longer than anybody waits for its answer."""
    hold_s = 0.6 if payload % 10 == 9 else 0.002
    steps = "for _ in range(8): await asyncio.sleep(0.01); time.sleep(0.002)"
    await _only(f"async def only():\n    time.sleep({hold_s})\n    {steps}", payload)()


@handler("disarmed")
def disarmed(payload: Any) -> str:
    """As it is for a moment after each task that has changed signal handlers."""
    faulthandler.unregister(STACK_SIGNAL)
    signal.raise_signal(STACK_SIGNAL)
    return "lives"

"""Handlers that die, hang or refuse to stop, each in its own way."""

import asyncio
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, field_validator

from taskgate import Attempt, Retry, handler
from tests.system.jobs import stamp

MIB = 1 << 20


def beat(attempt: Attempt) -> None:
    """Like `stamp`, in a file of its own: what is found there was alive then."""
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with Path(f"{os.environ['STAMPS']}.beats").open("ab", buffering=0) as file:
        file.write(f"{attempt.id} {now}\n".encode())


def _recursion_in_c() -> None:
    import pickle

    sys.setrecursionlimit(10**9)
    deep: list[Any] = []
    for _ in range(10**6):
        deep = [deep]
    pickle.dumps(deep)


def _memory_error() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, resource.RLIM_INFINITY))
    bytearray(1 << 40)


def _recursion() -> None:
    _recursion()


def _corrupts_the_channel() -> None:
    """Some descriptor that a C library takes for its own."""
    for fd in range(3, 64):
        try:
            os.write(fd, b"\xff" * 16)
        except OSError:
            continue
    time.sleep(60)


DEATHS: dict[str, Any] = {
    "exit code": lambda: os._exit(7),
    "exit 0": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "abort": lambda: ctypes.CDLL(None).abort(),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "real-time signal": lambda: os.kill(os.getpid(), signal.SIGRTMIN + 3),
    "recursion in C": _recursion_in_c,
    "garbage": _corrupts_the_channel,
    "sys.exit": lambda: sys.exit(3),
    "MemoryError": _memory_error,
    "recursion": _recursion,
}


@handler("death", max_attempts=2, retry_base_s=0.05)
def death(payload: str, attempt: Attempt) -> None:
    filled = b"x" * (200 * MIB)
    stamp("start", attempt)
    DEATHS[payload]()
    del filled


def _hang_in_c() -> None:
    """Waits for itself in C, with the GIL held; no signal ends the wait."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(128)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def _spin() -> None:
    while True:
        pass


def _ignores_signals() -> None:
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue
    time.sleep(3600)


def _swallows() -> None:
    while True:
        try:
            time.sleep(3600)
        except BaseException:  # noqa: BLE001 - that is what it is for
            continue


def _loops_in_finally() -> None:
    try:
        time.sleep(3600)
    finally:
        _spin()


HANGS: dict[str, Any] = {
    "spins": _spin,
    "hangs in C": _hang_in_c,
    "ignores signals": _ignores_signals,
    "swallows": _swallows,
    "loops in finally": _loops_in_finally,
    "sleeps": lambda: time.sleep(3600),
}


@handler("hangs", max_attempts=1)
def hangs(payload: str, attempt: Attempt) -> None:
    stamp("start", attempt)
    HANGS[payload]()


@handler("beats", max_attempts=1)
def beats(payload: dict[str, Any], attempt: Attempt) -> None:
    """Stamps as long as it lives, `ms` at most; `swallow`: and whatever it is asked."""
    until = time.monotonic() + payload["ms"] / 1000
    stamp("start", attempt)
    while time.monotonic() < until:
        try:
            while time.monotonic() < until:
                beat(attempt)
                time.sleep(0.002)
        except BaseException:
            if not payload.get("swallow"):
                raise
    stamp("end", attempt)


@handler("starts", max_attempts=1)
def starts(payload: dict[str, Any], attempt: Attempt) -> None:
    """Starts processes that sleep for `s` seconds, then does as `then` says."""
    sleep = f"sleep {payload['s']}"
    match payload["how"]:
        case "shell":
            subprocess.Popen(["sh", "-c", f"{sleep} & {sleep}"])
        case "own session":
            subprocess.Popen(["sh", "-c", f"{sleep} & {sleep}"], start_new_session=True)
        case "daemon":
            daemon = ["sh", "-c", f"trap '' TERM HUP; setsid sh -c '{sleep} & {sleep}' & exit 0"]
            subprocess.run(daemon, check=True, start_new_session=True)
        case "clean environment":
            subprocess.Popen(["sh", "-c", f"exec {sleep}"], start_new_session=True, env={"PATH": os.environ["PATH"]})
    stamp("start", attempt)
    match payload["then"]:
        case "sleep":
            time.sleep(3600)
        case "swallow":
            _swallows()
        case "crash":
            os._exit(9)


@handler("shell_beats", max_attempts=1)
def shell_beats(payload: dict[str, Any], attempt: Attempt) -> None:
    """Waits for a shell that stamps hundredths of a second until it is killed."""
    line = f"read up rest </proc/uptime; echo {attempt.id} ${{up%.*}}${{up#*.}}0000000"
    script = f"while :; do {line} >>{os.environ['STAMPS']}.beats; sleep 0.005; done"
    subprocess.run(["sh", "-c", script], check=False)


@handler("async.beats", max_attempts=1)
async def async_beats(payload: dict[str, Any], attempt: Attempt) -> None:
    until = time.monotonic() + payload["ms"] / 1000
    while time.monotonic() < until:
        beat(attempt)
        await asyncio.sleep(0.002)


@handler("echo")
def echo(payload: Any, attempt: Attempt) -> Any:
    stamp("start", attempt)
    stamp("end", attempt)
    return payload


@handler("dies_later")
def dies_later(payload: Any, attempt: Attempt) -> str:
    """Is done, and kills its process 5 ms later."""

    def die() -> None:
        time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

    stamp("start", attempt)
    threading.Thread(target=die).start()
    return "done"


@handler("dies_later_in_its_own", fresh_process=True, retry_base_s=0.05)
def dies_later_in_its_own(payload: Any, attempt: Attempt) -> str:
    return dies_later(payload, attempt)


@handler("async.neighbour", max_attempts=2, retry_base_s=0.05)
async def neighbour(payload: dict[str, Any], attempt: Attempt) -> str:
    """Waits for a file to appear."""
    stamp("start", attempt)
    while not Path(payload["until"]).exists():  # noqa: ASYNC110 - it is another process that makes it
        await asyncio.sleep(0.05)
    stamp("end", attempt)
    return "done"


@handler("async.death", max_attempts=3, retry_base_s=0.05)
async def async_death(payload: str, attempt: Attempt) -> None:
    stamp("start", attempt)
    await asyncio.sleep(0.01)
    DEATHS[payload]()


@handler("async.dies_unseen", max_attempts=2, retry_base_s=0.05)
async def dies_unseen(payload: dict[str, Any], attempt: Attempt) -> None:
    """From a callback of the loop: no step of a task, so nobody is noted."""
    stamp("start", attempt)
    asyncio.get_running_loop().call_later(payload.get("s", 0.0), ctypes.string_at, 0)
    await asyncio.sleep(60)


@handler("async.blocks", max_attempts=1)
async def blocks(payload: dict[str, Any], attempt: Attempt) -> None:
    await asyncio.sleep(0.01)
    stamp("start", attempt)  # and nothing else gets a step from here on
    if payload.get("unseen"):
        asyncio.get_running_loop().call_soon(select.select, [], [], [], 3600)
        await asyncio.sleep(3600)
    while True:
        select.select([], [], [], 3600)


@handler("async.swallows", max_attempts=1)
async def async_swallows(payload: Any, attempt: Attempt) -> None:
    stamp("start", attempt)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


@handler("async.busy", max_attempts=2)
async def busy(payload: dict[str, Any], attempt: Attempt) -> int:
    """Makes many short steps until a file appears, so that it is noted most of the time."""
    stamp("start", attempt)
    n = 0
    while not Path(payload["until"]).exists():
        time.sleep(0.002)  # noqa: ASYNC251 - a step of its own
        n += 1
        await asyncio.sleep(0)
    return n


class DiesEarly(BaseModel):
    value: int

    @field_validator("value")
    @classmethod
    def die(cls, _: int) -> int:
        os._exit(11)


@handler("dies_early", max_attempts=2, retry_base_s=0.05)
def dies_early(payload: DiesEarly, attempt: Attempt) -> None:
    stamp("start", attempt)


@handler("fills_memory", max_attempts=1)
def fills_memory(payload: Any, attempt: Attempt) -> None:
    kept = []
    while True:
        kept.append(bytearray(b"x" * MIB))


@handler("async.retries", max_attempts=5, retry_base_s=60, retry_max_s=60)
async def retries(payload: Any, attempt: Attempt) -> None:
    raise Retry(60)


@handler("waits_long", max_attempts=3, retry_base_s=3600, retry_max_s=3600)
def waits_long(payload: dict[str, int], attempt: Attempt) -> None:
    """In its first attempt."""
    stamp("start", attempt)
    if attempt.number == 1:
        time.sleep(payload["ms"] / 1000)

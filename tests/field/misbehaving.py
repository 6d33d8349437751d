"""Handlers that fail as the field cases F14, F15, F17, F18 and F23 tell."""

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import threading
import time
from typing import Any

from taskgate import Attempt, handler
from tests.system.jobs import stamp


@handler("exits_at_once", max_attempts=2, retry_base_s=0.05)
def exits_at_once(payload: Any, attempt: Attempt) -> None:
    stamp("start", attempt)
    os._exit(7)


@handler("raises_signal", max_attempts=2, retry_base_s=0.05)
def raises_signal(payload: int, attempt: Attempt) -> None:
    stamp("start", attempt)
    signal.raise_signal(payload)
    time.sleep(60)


class NeedsTwo(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("built from two")


class Holds(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock and a socket")
        self.lock, self.socket = threading.Lock(), socket.socket()


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Huge(Exception):
    def __str__(self) -> str:
        return "x" * 50_000_000


def _chain(length: int) -> BaseException:
    error = RuntimeError("the first cause")
    for n in range(length):
        later = RuntimeError(f"number {n}")
        later.__cause__ = error
        error = later
    return error


def _group() -> BaseException:
    return ExceptionGroup("several", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])])


def _homeless() -> BaseException:
    return type("Homeless", (Exception,), {"__module__": "nowhere.to.be.imported"})("from a module that is none")  # type: ignore[no-any-return]


ERRORS: dict[str, Any] = {
    "NeedsTwo": lambda: NeedsTwo(1, 2),
    "Holds": Holds,
    "Silent": Silent,
    "Huge": Huge,
    "ValueError": lambda: ValueError("odd \ud800 \x00 \x1b[31m"),
    "RuntimeError": lambda: _chain(1000),
    "ExceptionGroup": _group,
    "Homeless": _homeless,
}


@handler("raises_oddly", max_attempts=1)
def raises_oddly(payload: str) -> None:
    raise ERRORS[payload]()  # noqa: RSE102 - the table holds functions


def _loop() -> None:
    while True:
        time.sleep(0.01)


@handler("swallows", max_attempts=1)
def swallows(payload: str, attempt: Attempt) -> None:
    stamp("start", attempt)
    while payload == "except Exception":
        try:
            _loop()
        except Exception:  # noqa: BLE001
            continue
    while payload == "except BaseException":
        try:
            _loop()
        except BaseException:  # noqa: BLE001
            continue
    try:
        _loop()
    finally:
        _loop()


@handler("async.goes_on", max_attempts=1)
async def goes_on(payload: Any, attempt: Attempt) -> None:
    stamp("start", attempt)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


@handler("starts_a_shell", max_attempts=1)
def starts_a_shell(payload: dict[str, Any], attempt: Attempt) -> None:
    """A shell that starts a sleep in the background, both with our stdout."""
    script = f"sleep {payload['s']} & sleep {payload['s']}"
    subprocess.run(["sh", "-c", script], check=False, start_new_session=payload["own_session"])


@handler("uses_a_pool")
def uses_a_pool(payload: list[int]) -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, payload)


@handler("kills_its_group", max_attempts=3, retry_base_s=0.2)
def kills_its_group(payload: Any, attempt: Attempt) -> None:
    stamp("start", attempt)
    os.killpg(0, signal.SIGKILL)


@handler("kills_its_machine", max_attempts=3, retry_base_s=0.2)
def kills_its_machine(payload: Any, attempt: Attempt) -> None:
    """Supervisor and all: as if the container was killed."""
    stamp("start", attempt)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

"""Handlers that use memory, each in its own way, and one that shows what its process is."""

import asyncio
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from taskgate import Attempt, handler

LIMIT_MB = 400
_CHUNK = 1 << 20
_UP_TO = 4 * LIMIT_MB
"""MiB: so far they go if nobody stops them, and half a minute long."""


def fill_bytearrays() -> Any:
    return [bytearray(b"x" * _CHUNK) for _ in range(_UP_TO)]


def fill_one_bytearray() -> Any:
    return bytearray(_UP_TO * _CHUNK)


def fill_small_objects() -> Any:
    until = time.monotonic() + 30
    kept: list[Any] = []
    while time.monotonic() < until:
        kept.append([float(n) for n in range(1000)])
    return kept


def fill_shared_mapping() -> Any:
    pages = mmap.mmap(-1, _UP_TO * _CHUNK)
    for at in range(0, len(pages), _CHUNK):
        pages[at : at + _CHUNK] = bytes(_CHUNK)
    return pages


def fill_memfd() -> Any:
    """Never mapped: no process's resident size shows it."""
    fd = os.memfd_create("filled")
    for _ in range(_UP_TO):
        os.write(fd, bytes(_CHUNK))
    return fd


def fill_processes() -> Any:
    """Each of them stays below the limit."""
    program = f"kept = bytearray(b'x' * {_CHUNK}) * {LIMIT_MB * 3 // 5}; import time; time.sleep(30)"
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    for process in started:
        process.wait()


FILLS = {
    "bytearrays": fill_bytearrays,
    "one bytearray": fill_one_bytearray,
    "small objects": fill_small_objects,
    "shared mapping": fill_shared_mapping,
    "memfd": fill_memfd,
    "processes": fill_processes,
}


@handler("fills", memory_limit_mb=LIMIT_MB, max_attempts=1)
def fills(payload: str, attempt: Attempt) -> None:
    attempt.progress(os.getpid())
    kept = FILLS[payload]()
    time.sleep(30)
    del kept


@handler("keeps", memory_limit_mb=LIMIT_MB)
def keeps(payload: int) -> int:
    """Uses so many MiB, well within the limit, for a moment."""
    kept = bytearray(b"x" * _CHUNK) * payload
    time.sleep(0.3)
    return len(kept)


@handler("holds", memory_limit_mb=LIMIT_MB)
def holds(payload: dict[str, Any]) -> int:
    """Uses so many MiB until that file is there."""
    kept = bytearray(b"x" * _CHUNK) * payload["mib"]
    while not Path(payload["until"]).exists():
        time.sleep(0.05)
    return len(kept)


_leaked: list[bytearray] = []


@handler("leaks")
def leaks(payload: int) -> int:
    """Leaves so many MiB behind; the process that did."""
    _leaked.append(bytearray(b"x" * _CHUNK) * payload)
    return os.getpid()


@handler("pid")
def pid(payload: Any) -> int:
    return os.getpid()


@handler("async.until")
async def async_until(payload: str) -> None:
    """Runs until that file is there."""
    while not Path(payload).exists():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.05)


@handler("async.pid")
async def async_pid(payload: Any) -> int:
    return os.getpid()


@handler("fresh.pid", fresh_process=True)
def fresh_pid(payload: Any) -> int:
    return os.getpid()

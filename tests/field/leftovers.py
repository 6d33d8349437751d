"""Handlers that leave everything behind, that change their signals, and that show what they find."""

import asyncio
import json
import locale
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from taskgate import Attempt, handler
from tests.system.jobs import stamp

_kept: list[Any] = []
FIRST_CHECK_S = 0.06
"""Tasks of so much run time are looked after at once, not only when the child idles."""


async def _for_ever() -> None:
    while True:  # noqa: ASYNC110 - that is what it is for
        await asyncio.sleep(0.01)


def leave_everything(payload: Any) -> int:
    os.environ["LEFT_SECRET"] = "s3cret"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    os.umask(0)
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    sys.setrecursionlimit(4000)
    socket.setdefaulttimeout(0.001)
    signal.alarm(3600)
    json.dumps = lambda *_, **__: "patched"
    for _ in range(10):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    _kept.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(50))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    _kept.append(loop.create_task(_for_ever()))
    loop.run_until_complete(asyncio.sleep(0.01))
    time.sleep(FIRST_CHECK_S)
    return os.getpid()


def see(payload: Any) -> dict[str, Any]:
    umask = os.umask(0o22)
    os.umask(umask)
    Path("written by the next task").write_text("relative paths work")
    return {
        "secret": os.environ.get("LEFT_SECRET"),
        "folder": str(Path.cwd()),
        "umask": umask,
        "locale": locale.setlocale(locale.LC_ALL),
        "recursion": sys.getrecursionlimit(),
        "timeout": socket.getdefaulttimeout(),
        "alarm": signal.alarm(0),
        "signals": [str(signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGINT)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }


def see_all(payload: Any) -> dict[str, Any]:
    """Also what only a process of its own is free of."""
    return see(payload) | {"json": json.dumps(1), "threads": threading.active_count()}


handler("leaves")(leave_everything)
handler("sees")(see)
handler("fresh.leaves", fresh_process=True)(leave_everything)
handler("fresh.sees", fresh_process=True)(see_all)


def ignored() -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)


def swallowed() -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(each, lambda *_: None)


def blocked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


CHANGES = {"ignored": ignored, "swallowed": swallowed, "blocked": blocked}


@handler("changes")
def changes(payload: str, attempt: Attempt) -> None:
    CHANGES[payload]()
    time.sleep(FIRST_CHECK_S)


@handler("changes.and.runs")
def changes_and_runs(payload: str, attempt: Attempt) -> None:
    CHANGES[payload]()
    stamp("start", attempt)
    while True:
        time.sleep(0.1)

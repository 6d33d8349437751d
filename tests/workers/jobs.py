"""Handlers as people write them, and as nobody should."""

import asyncio
import contextvars
import ctypes
import json
import locale
import math
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from taskgate import Attempt, Canceled, Fail, Retry, Stopped, TimedOut, child_start, handler
from workers.dumps import STACK_SIGNAL

STARTED: list[str] = []


@child_start
def open_pool() -> None:
    STARTED.append("sync")


@child_start
async def open_async_pool() -> None:
    STARTED.append("async")


class Order(BaseModel):
    item: str
    count: int = 1


@handler("echo")
def echo(payload: Any) -> Any:
    return payload


@handler("order")
def order(payload: Order) -> Order:
    return Order(item=payload.item, count=payload.count + 1)


@handler("starts")
def starts(payload: Any) -> list[str]:
    return STARTED


@handler("facts")
def facts(payload: Any, attempt: Attempt) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "key": attempt.idempotency_key,
        "number": attempt.number,
        "remaining_s": attempt.remaining_s,
        "resume_from": attempt.resume_from,
        "cancel_requested": attempt.cancel_requested,
    }


@handler("says")
def says(payload: str, attempt: Attempt) -> None:
    match payload:
        case "event":
            attempt.emit("page")
        case "checkpoint":
            attempt.checkpoint(1)
        case "output":
            print("page")
        case "log":
            attempt.log.warning("page")
    time.sleep(3600)


@handler("reports")
def reports(payload: Any, attempt: Attempt) -> None:
    attempt.progress(1, 4, unit="pages", stage="draw", message="first")
    attempt.progress(3, 4, unit="pages", stage="draw", message="drawn")
    attempt.emit("page", {"number": 3})
    attempt.checkpoint({"page": 3})
    attempt.submit("child", {"of": attempt.id}, delay_s=2)


@handler("submits_and_fails")
def submits_and_fails(payload: Any, attempt: Attempt) -> None:
    attempt.submit("child")
    raise ValueError("no")


class HidesItsClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("nobody may know")


class AsksWrongly(Retry):
    def __init__(self) -> None:
        self.after_s = "soon"  # type: ignore[assignment]


@handler("ends_badly")
def ends_badly(payload: str, attempt: Attempt) -> Any:
    """What cannot be sent as it is."""
    match payload:
        case "submitted object":
            attempt.submitted.append(object())  # type: ignore[arg-type]
        case "submitted none":
            attempt.submitted = None  # type: ignore[assignment]
        case "submitted wrong":
            attempt.submit("child")
            attempt.submitted[0] = attempt.submitted[0]._replace(priority="high")  # type: ignore[arg-type]
        case "hidden class":
            raise HidesItsClass
        case "no descriptors":
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            return "x" * 200_000
    return None


@handler("asks_wrongly")
def asks_wrongly(payload: Any) -> None:
    raise AsksWrongly


@handler("async.ends_badly")
async def async_ends_badly(payload: str, attempt: Attempt) -> Any:
    await asyncio.sleep(0)
    return ends_badly(payload, attempt)


@handler("waits_for")
def waits_for(payload: Any, attempt: Attempt) -> None:
    with attempt.waiting("the other side"):
        attempt.progress(1)
        while not attempt.cancel_requested:
            time.sleep(0.01)


@handler("forever")
def forever(payload: Any, attempt: Attempt) -> None:
    attempt.progress(1)
    while True:
        time.sleep(0.01)


@handler("leaves_a_thread_when_stopped")
def leaves_a_thread_when_stopped(payload: Any, attempt: Attempt) -> None:
    _thread()
    attempt.progress(1)
    time.sleep(3600)


@handler("cleans_up")
def cleans_up(payload: str, attempt: Attempt) -> str:
    """Ends well although it was stopped."""
    try:
        attempt.progress(1)
        while True:
            time.sleep(0.01)
    except Canceled:
        return "canceled"
    except TimedOut:
        return "timed out"


@handler("cleans_up_slowly")
def cleans_up_slowly(payload: float, attempt: Attempt) -> str:
    try:
        attempt.progress(1)
        time.sleep(60)
    except Stopped:
        attempt.progress(2)
        time.sleep(payload)
        return "cleaned up"
    return "not stopped"


@handler("pid")
def pid(payload: Any) -> int:
    return os.getpid()


@handler("asks_again_when_stopped")
def asks_again_when_stopped(payload: Any, attempt: Attempt) -> None:
    try:
        attempt.progress(1)
        while True:
            time.sleep(0.01)
    except Stopped:
        raise Retry(7) from None


@handler("breaks_when_stopped")
def breaks_when_stopped(payload: Any, attempt: Attempt) -> None:
    try:
        attempt.progress(1)
        while True:
            time.sleep(0.01)
    except Stopped:
        raise RuntimeError("while cleaning up") from None


@handler("never_stops")
def never_stops(payload: Any, attempt: Attempt) -> None:
    while True:
        try:
            while True:
                attempt.progress(1)
                time.sleep(0.001)
        except BaseException:  # noqa: BLE001 — this is what it is here for
            attempt.progress(2)


@handler("sleeps")
def sleeps(payload: float) -> str:
    time.sleep(payload)
    return "slept"


@handler("raises")
def raises(payload: str) -> None:
    match payload:
        case "value":
            raise ValueError("wrong")
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "memory":
            raise MemoryError
        case "recursion":
            deeper(0)
        case "retry":
            raise Retry(after_s=2.5, reason="busy")
        case "fail":
            raise Fail("never again")


def deeper(n: int) -> int:
    return deeper(n + 1) + 1


@handler("picky", retry_on=(ConnectionError,))
def picky(payload: str) -> None:
    raise ConnectionError("again") if payload == "again" else ValueError("not again")


@handler("returns")
def returns(payload: str) -> Any:
    nested: list[Any] = []
    for _ in range(50_000):
        nested = [nested]
    return {
        "nan": [1.0, math.nan],
        "infinity": math.inf,
        "object": object(),
        "large": "x" * 2_000_000,
        "deep": nested,
        "surrogate": "\ud800",
        "medium": "y" * 200_000,
    }[payload]


@handler("returns_wrong")
def returns_wrong(payload: Any) -> Order:
    return {"item": 5}  # type: ignore[return-value]


@handler("dies")
def dies(payload: str) -> None:
    match payload:
        case "exit":
            os._exit(7)
        case "segv":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


@handler("dies_after")
def dies_after(payload: str) -> str:
    """Its end, once that file is there."""

    def die() -> None:
        while not Path(payload).exists():
            time.sleep(0.001)
        os._exit(9)

    threading.Thread(target=die).start()
    return "was done"


@handler("forks")
def forks(payload: Any) -> int:
    """Comes back in both processes."""
    return os.fork()


@handler("pool")
def pool(payload: int) -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return workers.map(abs, range(-payload, 0))


@handler("spawned_pool")
def spawned_pool(payload: int) -> list[int]:
    with multiprocessing.get_context("spawn").Pool(2) as workers:
        return workers.map(abs, range(-payload, 0))


@handler("starts_a_shell")
def starts_a_shell(payload: Any, attempt: Attempt) -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 3600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert shell.stdout
    attempt.progress(int(shell.stdout.readline()))
    shell.wait()


@handler("eats", memory_limit_mb=160)
def eats(payload: int) -> int:
    return len(bytearray(payload * 1024 * 1024))


@handler("limited_forever", memory_limit_mb=4096)
def limited_forever(payload: Any) -> None:
    time.sleep(3600)


_kept: list[bytearray] = []


@handler("keeps")
def keeps(payload: int) -> int:
    """Leaves so many MiB to the next task."""
    _kept.append(bytearray(b"x" * 1024 * 1024) * payload)
    return payload


@handler("eats_freely")
def eats_freely(payload: int) -> int:
    return len(bytearray(payload * 1024 * 1024))


@handler("holds_the_gil")
def holds_the_gil(payload: int, attempt: Attempt) -> None:
    attempt.progress(1)
    pow(7, 1 << payload)
    attempt.progress(2)


@handler("leaves")
def leaves(payload: list[str]) -> None:
    """Leave behind whatever is named."""
    for what in payload:
        LEAVES[what]()


def _gone_folder() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)


def _thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def _threads() -> None:
    for _ in range(10):
        _thread()


LEAVES: dict[str, Any] = {
    "environment": lambda: os.environ.update(SECRET="left", PATH="/nowhere"),
    "folder": _gone_folder,
    "umask": lambda: os.umask(0o777),
    "recursion": lambda: sys.setrecursionlimit(5000),
    "socket": lambda: socket.setdefaulttimeout(0.001),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "alarm": lambda: signal.alarm(3600),
    "ignored": lambda: [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)],
    "swallowed": lambda: signal.signal(signal.SIGTERM, lambda *_: None),
    "stack": lambda: signal.signal(STACK_SIGNAL, signal.SIG_IGN),
    "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1]),
    "thread": _thread,
    "stubborn thread": lambda: threading.Thread(target=time.sleep, args=(3600,)).start(),
    "threads": _threads,
    "files": lambda: [os.open("/dev/null", os.O_RDONLY) for _ in range(50)],
    "process": lambda: subprocess.Popen(["sleep", "3600"]),
    "joined process": lambda: multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,)).start(),
}


@handler("async.leaves")
async def async_leaves(payload: list[str]) -> None:
    leaves(payload)


@handler("sees")
def sees(payload: Any) -> dict[str, Any]:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "environment": {name: os.environ.get(name) for name in ("SECRET", "PATH")},
        "folder": os.getcwd(),  # noqa: PTH109
        "umask": umask,
        "recursion": sys.getrecursionlimit(),
        "socket": socket.getdefaulttimeout(),
        "locale": locale.setlocale(locale.LC_ALL),
        "alarm": signal.alarm(0),
        "signals": [str(signal.getsignal(one)) for one in (signal.SIGTERM, signal.SIGINT)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "taskgate": sorted(name for name in os.environ if name.startswith("TASKGATE_")),
        "pythonpath": os.environ.get("PYTHONPATH"),
    }


SECRET = "correct horse battery staple"


def _secrets_in_slot() -> int:
    """How often the secret can be read in the memory that is shared with the supervisor."""
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:taskgate-slot" in line:
            start, end = (int(address, 16) for address in line.split()[0].split("-"))
            found += ctypes.string_at(start, end - start).count(SECRET[:20].encode())
    return found


@handler("shows_a_secret")
def shows_a_secret(payload: Any, attempt: Attempt) -> int:
    attempt.progress(1, stage=SECRET, message=SECRET)
    with attempt.waiting(SECRET):
        return _secrets_in_slot()


@handler("looks_for_the_secret")
def looks_for_the_secret(payload: Any) -> int:
    return _secrets_in_slot()


@handler("late_reporter")
def late_reporter(payload: Any, attempt: Attempt) -> None:
    """Leaves a thread that goes on reporting at full rate."""

    def report() -> None:
        while True:
            attempt.progress(666, message="late")

    threading.Thread(target=report, daemon=True).start()


@handler("leaves_behind")
def leaves_behind(payload: int) -> None:
    """Dies, and leaves a process of so many MiB in its group: one that takes its time to die."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        memory = mmap.mmap(-1, payload << 20)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        os.write(writer, b"!")
        signal.pause()
    os.read(reader, 1)
    os._exit(3)


@handler("shows")
def shows(payload: float, attempt: Attempt) -> None:
    attempt.progress(5, message="mine")
    time.sleep(payload)


@handler("async.echo")
async def async_echo(payload: Any) -> Any:
    await asyncio.sleep(0)
    return payload


@handler("async.starts")
async def async_starts(payload: Any) -> list[str]:
    return STARTED


@handler("async.sleeps")
async def async_sleeps(payload: float, attempt: Attempt) -> str:
    attempt.progress(1)
    await asyncio.sleep(payload)
    return "slept"


_met: list[asyncio.Event] = []


@handler("async.calls")
async def async_calls(payload: float) -> None:
    await asyncio.to_thread(time.sleep, payload)


@handler("async.meets")
async def async_meets(payload: int) -> None:
    """Ends when so many are there at a time."""
    _met.append(asyncio.Event())
    if len(_met) == payload:
        for one in _met:
            one.set()
    await _met[-1].wait()


@handler("async.blocks")
async def async_blocks(payload: float) -> None:
    await asyncio.sleep(0)
    time.sleep(payload)  # noqa: ASYNC251 — the fault it is here for


@handler("async.blocks_unseen")
async def async_blocks_unseen(payload: float, attempt: Attempt) -> None:
    """In a callback: no step of a task's."""
    loop = asyncio.get_running_loop()
    loop.call_soon(attempt.progress, 1)
    loop.call_soon(time.sleep, payload)
    await asyncio.sleep(payload)


@handler("async.busy")
async def async_busy(payload: Any) -> None:
    """Steps without end, each of a millisecond."""
    while True:
        time.sleep(0.001)  # noqa: ASYNC251 — a step of its own
        await asyncio.sleep(0)


@handler("async.blocks_in_a_task")
async def async_blocks_in_a_task(payload: float) -> None:
    await asyncio.gather(async_blocks(payload))


@handler("async.dies")
async def async_dies(payload: Any) -> None:
    await asyncio.sleep(0)
    os._exit(5)


@handler("async.swallows")
async def async_swallows(payload: Any) -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


@handler("async.cleans_up")
async def async_cleans_up(payload: Any, attempt: Attempt) -> str:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return f"stopped: {attempt.cancel_requested}"
    return "not stopped"


@handler("async.raises")
async def async_raises(payload: str) -> None:
    await asyncio.sleep(0)
    raises(payload)


@handler("async.exits_in_a_task")
async def async_exits_in_a_task(payload: Any) -> None:
    await asyncio.gather(_exit())


@handler("async.exits_in_a_callback")
async def async_exits_in_a_callback(payload: Any) -> str:
    asyncio.get_running_loop().call_soon(sys.exit, 4)
    await asyncio.sleep(0.05)
    return "still here"


async def _exit() -> None:
    sys.exit(4)


_background: set[asyncio.Task[None]] = set()
_ticks: list[float] = []


@handler("async.leaves_a_task")
async def async_leaves_a_task(payload: Any) -> None:
    async def tick() -> None:
        while True:
            _ticks.append(time.monotonic())
            await asyncio.sleep(0.001)

    _background.add(asyncio.create_task(tick()))
    await asyncio.sleep(0.01)


@handler("async.ticks")
async def async_ticks(payload: float) -> int:
    before = len(_ticks)
    await asyncio.sleep(payload)
    return len(_ticks) - before


_own: contextvars.ContextVar[str] = contextvars.ContextVar("own", default="none")


@handler("async.context")
async def async_context(payload: str) -> str:
    """What one task sets in its context, its neighbours do not see."""
    before = _own.get()
    _own.set(payload)
    await asyncio.sleep(0.01)
    return json.dumps([before, _own.get()])

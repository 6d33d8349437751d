"""What faulthandler writes when a child is sent STACK_SIGNAL, or dies of a fatal signal: read here, and understood."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from taskgate.contract.stacks import Frame, Thread
from workers.failures import OURS, clean

STACK_SIGNAL = signal.SIGRTMAX - 1
"""One that nobody uses by accident: a task would be called, and could fail, for a question that it did not ask."""
MOST_BYTES = 64 * 1024
QUIET_S, LOST_S = 0.02, 0.25
"""A dump whose end cannot be seen has ended when nothing more has arrived for so long; the latter where there should be
more: its child may have lost its CPU in the middle of it.
"""
MAIN_THREAD = "MainThread"

_FATAL = "Fatal Python error: "
_STACK_SIGNAL_BIT = 1 << (STACK_SIGNAL - 1)
"""In the masks that /proc shows."""
_HEADER = re.compile(r"(Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_OUTERMOST = "_run_module_as_main"
"""How `python -m` starts: where the main thread's stack ends, which is the last one written."""
_MOST_FRAMES = 100
"""faulthandler writes no more of a thread, and from Python 3.13 on does not say so."""


class Dumps:
    """The pipe into which one child's faulthandler writes. Who asks for the same moment meanwhile gets the same."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """`ask`: sends the signal."""
        self._loop = asyncio.get_running_loop()
        self._ask = ask
        self._fd, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._writable = True
        self._text = ""
        self._arriving: asyncio.Future[str] | None = None
        self._moment: object = None
        self._quiet: asyncio.TimerHandle | None = None

    def started(self) -> None:
        """The child has its end: close ours."""
        self._writable = False
        os.close(self.writer)

    def begin(self, moment: object) -> "asyncio.Future[str]":
        """Ask for a dump; done when all of it has arrived, or by `end`."""
        if self._arriving is None or moment != self._moment:
            self.end()
            self._text, self._moment = "", moment
            self._arriving = self._loop.create_future()
            self._loop.add_reader(self._fd, self._arrived)
            self._ask()
        return self._arriving

    async def take(self, moment: object, within_s: float) -> str:
        """A dump, or what has arrived of it by then."""
        dump = self.begin(moment)
        await asyncio.wait([dump], timeout=within_s)
        return self.end() if not dump.done() else dump.result()

    def end(self) -> str:
        """What has arrived of the last dump; nothing more of it is waited for."""
        self._read()
        if self._arriving is not None:
            self._loop.remove_reader(self._fd)
            self._arriving.set_result(self._text)
            self._arriving = None
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        return self._text

    def last_words(self) -> str:
        """What was written at a fatal signal; "" when its child died otherwise."""
        found = self.end().rfind(_FATAL)
        return self._text[found:] if found >= 0 else ""

    def close(self) -> None:
        self.end()
        os.close(self._fd)
        if self._writable:
            os.close(self.writer)

    def _arrived(self) -> None:
        self._read()
        if _ends_with_main_thread(self._text):
            self.end()
            return
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = self._loop.call_later(QUIET_S if _may_have_ended(self._text) else LOST_S, self.end)

    def _read(self) -> None:
        try:
            while more := os.read(self._fd, MOST_BYTES):
                self._text = (self._text + more.decode("utf-8", "replace"))[:MOST_BYTES]
        except BlockingIOError:
            pass


def obstacle(pid: int) -> str | None:
    """Why a process would not answer the signal, or would even die of it; None: it will answer.

    `paused`: it is stopped. `signal_taken`: a handler of its task's has taken or blocked the signal. `ended`.
    """
    try:
        status = _status(Path(f"/proc/{pid}"))
        state, caught, blocked = status["State"][0], _has(status["SigCgt"]), _has(status["SigBlk"])
    except (OSError, ValueError, KeyError):
        return "ended"
    if state in "ZX":
        return "ended"
    if state in "Tt":
        return "paused"
    return None if caught and not (blocked and _blocked_by_all(pid)) else "signal_taken"


def _blocked_by_all(pid: int) -> bool:
    """Any thread may take the signal, and faulthandler shows all of them."""
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError, KeyError):  # one that has ended
            if not _has(_status(thread)["SigBlk"]):
                return False
    return True


def _status(folder: Path) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())


def _has(mask: str) -> bool:
    return bool(int(mask, 16) & _STACK_SIGNAL_BIT)


class Dump(NamedTuple):
    headline: str
    """The fatal error; "" for a dump that was asked for."""
    threads: list[Thread]

    @property
    def struck_main(self) -> bool:
        """Whether the signal was handled by the main thread: at a fatal one, it is this which was struck."""
        return any(one.current and one.name == MAIN_THREAD for one in self.threads)


def parse(text: str) -> Dump:
    """What faulthandler wrote, as far as it got. `current` is the thread in which the signal was handled."""
    headline = ""
    threads: list[Thread] = []
    for line in text.splitlines():
        if line.startswith(_FATAL):
            headline, threads = clean(line, 200), []
        elif found := _HEADER.fullmatch(line):
            name = clean(found[3] or f"thread {int(found[2], 16):#x}", 100)
            threads.append(Thread(name, found[1] == "Current thread", []))
        elif threads and (found := _FRAME.fullmatch(line)):
            number = None if found[2] == "???" else int(found[2])
            threads[-1].frames.append(Frame(clean(found[1], 500), number, clean(found[3], 200)))
            if len(threads[-1].frames) == _MOST_FRAMES and found[3] != _OUTERMOST:
                threads[-1] = replace(threads[-1], truncated=True)
    if threads and _is_main(threads[-1]):
        threads[-1] = replace(threads[-1], name=MAIN_THREAD, frames=inside(threads[-1].frames))
    return Dump(headline, threads)


def of_handler(dump: Dump) -> list[Thread]:
    """The main thread, in which handlers are called, and then the others."""
    return [*main_thread(dump), *(replace(one, current=False) for one in dump.threads if one.name != MAIN_THREAD)]


def main_thread(dump: Dump) -> list[Thread]:
    return [replace(one, current=True) for one in dump.threads if one.name == MAIN_THREAD]


def inside(frames: list[Frame]) -> list[Frame]:
    """Those of the handler; all, when it has none."""
    own = next((n for n, frame in enumerate(frames) if frame.file in OURS), len(frames))
    return frames[:own] or frames


def _is_main(last: Thread) -> bool:
    """The main thread is the last one written; its outermost frames may have been cut off."""
    return last.truncated or any(frame.function == _OUTERMOST or frame.file in OURS for frame in last.frames)


def _may_have_ended(text: str) -> bool:
    """At a stack deeper than is written, at more threads than are, or at what we keep."""
    return text.endswith("...\n") or len(text) == MOST_BYTES or _frames_of_last(text) >= _MOST_FRAMES


def _frames_of_last(text: str) -> int:
    """How many frames of the last thread are there."""
    return text.count("\n  File ", text.rfind(" (most recent call first):"))


def _ends_with_main_thread(text: str) -> bool:
    return text.endswith(f"in {_OUTERMOST}\n")

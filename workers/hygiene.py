"""What one task may not leave to the next: taken back where it can be, told where it cannot."""

import contextlib
import gc
import locale
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RLIMIT_DATA, getrlimit, setrlimit
from typing import NamedTuple

from workers.orphans import children_of

RUN_TIME_NS = 50_000_000
"""Checked at most once per so much run time, and before idling: a check costs more than a small task."""

THREADS_LEFT = 8
DESCRIPTORS_LEFT = 32
"""What a child may gain over its start: pools that handlers open at first use are no leak, what grows is."""


class LeftBehind(NamedTuple):
    """In words."""

    kept: list[str]
    """What cannot be taken back."""
    undone: list[str]
    """What was taken back."""


NOTHING = LeftBehind([], [])


_STARTING = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})


class Started:
    """Whether Python has started a process since the last look: most tasks start none, and looking costs."""

    def __init__(self) -> None:
        self._any = False
        sys.addaudithook(self._note)

    def take(self) -> bool:
        found, self._any = self._any, False
        return found

    def _note(self, event: str, _arguments: tuple[object, ...]) -> None:
        if event in _STARTING:
            self._any = True


class Hygiene:
    """Remembers how the child was when it became ready, and brings it back to that."""

    def __init__(self, *, arm: Callable[[], None], restore_streams: Callable[[], list[str]]) -> None:
        """`arm` installs the signal handlers that Python's own table does not know. `restore_streams`: says what of
        streams and loggers it has taken back.
        """
        self._arm = arm
        self._restore_streams = restore_streams
        self._signals = {number: signal.getsignal(number) for number in _CATCHABLE}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._folder = Path.cwd()
        self._umask = _umask()
        self._environ = dict(os.environ)
        self._recursion = sys.getrecursionlimit()
        self._socket_timeout = socket.getdefaulttimeout()
        self._locale = locale.setlocale(locale.LC_ALL)
        self._threads = _threads()
        self._descriptors = _descriptors()
        self._helpers = frozenset(children_of(os.getpid()))
        self._ran_ns = 0
        self._due = False

    def ran(self, run_ns: int) -> LeftBehind:
        """Count a task's run time; when enough has come together, restore."""
        self._due = True
        self._ran_ns += run_ns
        return self.restore() if self._ran_ns >= RUN_TIME_NS else NOTHING

    def before_idling(self) -> LeftBehind:
        return self.restore() if self._due else NOTHING

    def restore(self) -> LeftBehind:
        """Put back what was changed."""
        self._due, self._ran_ns = False, 0
        undone = [name for name, changed in self._settings() if changed]
        gc.collect()
        count_peak_anew()
        return LeftBehind(self._left_over(), undone)

    def _settings(self) -> Iterator[tuple[str, bool]]:
        for name in self._restore_streams():
            yield name, True
        yield "signal handlers", self._signals_changed()
        yield "signal mask", signal.pthread_sigmask(signal.SIG_SETMASK, self._mask) != self._mask
        yield "timers", any(signal.setitimer(which, 0)[0] for which in _TIMERS)
        yield "working directory", self._folder_changed()
        yield "umask", os.umask(self._umask) != self._umask
        yield "environment", self._environ_changed()
        if sys.getrecursionlimit() != self._recursion:
            sys.setrecursionlimit(self._recursion)
            yield "recursion limit", True
        if socket.getdefaulttimeout() != self._socket_timeout:
            socket.setdefaulttimeout(self._socket_timeout)
            yield "socket timeout", True
        if locale.setlocale(locale.LC_ALL) != self._locale:
            locale.setlocale(locale.LC_ALL, self._locale)
            yield "locale", True

    def _signals_changed(self) -> bool:
        changed = [number for number, was in self._signals.items() if signal.getsignal(number) is not was]
        for number in changed:
            # None: installed by C code before us; there is no way to put that back.
            signal.signal(number, signal.SIG_DFL if self._signals[number] is None else self._signals[number])
        if changed:
            self._arm()
        return bool(changed)

    def _folder_changed(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if Path.cwd() == self._folder:
                return False
        os.chdir(self._folder)
        return True

    def _environ_changed(self) -> bool:
        if os.environ == self._environ:
            return False
        for name in os.environ.keys() - self._environ.keys():
            del os.environ[name]
        os.environ.update(self._environ)
        return True

    def _left_over(self) -> list[str]:
        found = []
        if (threads := _threads() - self._threads) > THREADS_LEFT:
            found.append(f"{threads} threads")
        if (descriptors := _descriptors() - self._descriptors) > DESCRIPTORS_LEFT:
            found.append(f"{descriptors} open files")
        if started := self.started():
            found.append("1 process" if started == 1 else f"{started} processes")
        return found

    def started(self) -> int:
        """Processes that live, but for those from before the first task; the others are reaped once they ended."""
        return sum(_lives(pid) for pid in children_of(os.getpid()) if pid not in self._helpers)


@contextlib.contextmanager
def memory_limit(megabytes: int) -> Iterator[None]:
    """Inside, allocating raises MemoryError where it would take this process over its limit.

    Raises:
        MemoryError: the process is as large before anything is allocated.
    """
    count_peak_anew()
    soft, hard = getrlimit(RLIMIT_DATA)
    _, resident, _, _, _, data, _ = map(int, Path("/proc/self/statm").read_text().split())
    left = (megabytes << 20) - resident * _PAGE_BYTES
    if left <= 0:
        used_mb = resident * _PAGE_BYTES >> 20
        raise MemoryError(f"the process uses {used_mb} MiB before the task has begun, and its limit is {megabytes}")
    wanted = data * _PAGE_BYTES + left
    setrlimit(RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
    try:
        yield
    finally:
        setrlimit(RLIMIT_DATA, (soft, hard))


_CLEAR_REFS = Path("/proc/self/clear_refs")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_CATCHABLE = sorted(set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, 32, 33})
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def _threads() -> int:
    """asyncio's own pool is bounded, and kept for the next task."""
    return sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _lives(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    return False


def count_peak_anew() -> None:
    """The kernel's peak of this process's memory is from now on that of the tasks to come."""
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text("5")

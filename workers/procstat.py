"""What the kernel knows about a child: CPU time, time spent waiting for a CPU, memory."""

import contextlib
import ctypes
import functools
import itertools
import math
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from workers.orphans import descendants_of

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_BUFFER = 1024
_UNCOUNTED_MS = 100
"""A process that ran for longer and has zeroes in its schedstat is not counted at all: a kernel built without."""
_DESCRIPTORS = 256
"""Looked through for files that are memory: a process with thousands of files must not cost the supervisor its time."""


class Numbers(NamedTuple):
    """None where the kernel does not say."""

    cpu_ms: int
    """User and system time of all its threads."""
    wait_ms: int | None
    """Time that its threads stood in a run queue."""
    rss_bytes: int
    runnable: bool = False
    """Its main thread runs, or would if it had a CPU."""


def waited_ms(now: Numbers | None, before: Numbers | None) -> int | None:
    """Time in a run queue between two samples; None where one of them does not say."""
    if now is None or before is None or now.wait_ms is None or before.wait_ms is None:
        return None
    return now.wait_ms - before.wait_ms


class _Thread:
    """One thread's schedstat file, and the last that was read of it."""

    __slots__ = ("_fd", "ran_ns", "waited_ns")

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.ran_ns = self.waited_ns = 0

    def read(self) -> None:
        ran, waited, _ = os.pread(self._fd, _BUFFER, 0).split()
        self.ran_ns, self.waited_ns = int(ran), int(waited)

    def close(self) -> None:
        os.close(self._fd)


class ProcStat:
    """Reads one process's files, which it keeps open: a sample is a few reads, no path look-ups.

    Its files belong to the process, not to the number: a new process of the same id is never read by mistake.
    """

    def __init__(self, pid: int, *, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._stat: int | None = None
        with contextlib.suppress(OSError):  # nothing is known of it then, and it runs all the same
            self._stat = os.open(proc / str(pid) / "stat", os.O_RDONLY | os.O_CLOEXEC)
        self._tasks = str(proc / str(pid) / "task")
        self._threads: dict[str, _Thread] = {}
        self._gone_ns = 0
        """What threads that have ended had waited, as last seen."""

    def sample(self) -> Numbers | None:
        """None when the process is gone, or nothing can be known of it."""
        if (fields := self._fields()) is None:
            return None
        # proc(5): utime and stime are 14 and 15, rss is 24; the part behind the name starts with 3, the state.
        cpu_ms = int((int(fields[11]) + int(fields[12])) * _TICK_MS)
        return Numbers(cpu_ms, self._wait_ms(cpu_ms), int(fields[21]) * _PAGE_BYTES, fields[0] == b"R")

    def started_cpu_ms(self) -> int:
        """CPU time of the processes that it has started, ended ones included that it waited for."""
        fields = self._fields()
        ticks = 0 if fields is None else int(fields[13]) + int(fields[14])
        for pid in descendants_of(self._pid):
            with contextlib.suppress(OSError, IndexError):
                ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:15]))
        return int(ticks * _TICK_MS)

    def close(self) -> None:
        if self._stat is not None:
            os.close(self._stat)
            self._stat = None
        for thread in self._threads.values():
            thread.close()
        self._threads.clear()

    def _fields(self) -> list[bytes] | None:
        """Of its stat file, from the state on."""
        if self._stat is None:
            return None
        try:
            return os.pread(self._stat, _BUFFER, 0).rpartition(b")")[2].split()
        except ProcessLookupError:
            return None

    def _wait_ms(self, cpu_ms: int) -> int | None:
        """Summed over its threads: the process's own file knows the main thread only."""
        try:
            names = set(os.listdir(self._tasks))  # noqa: PTH208 - a fifth of the time, four times a second for each child
        except OSError:
            return None
        for name in self._threads.keys() - names:
            self._gone_ns += self._threads[name].waited_ns
            self._threads.pop(name).close()
        for name in names:
            # A thread may end at any moment; without the file the kernel does not count, or does not show.
            with contextlib.suppress(OSError, ValueError):
                if name not in self._threads:
                    self._threads[name] = _Thread(f"{self._tasks}/{name}/schedstat")
                self._threads[name].read()
        ran_ns = sum(thread.ran_ns for thread in self._threads.values())
        if not self._threads or (not ran_ns and cpu_ms > _UNCOUNTED_MS):
            return None
        return (self._gone_ns + sum(thread.waited_ns for thread in self._threads.values())) // 1_000_000


class Memory:
    """What a process uses of the machine's memory, together with what it started; a few short reads each time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)

    def resident(self) -> int:
        """Of the process alone; 0 once it has ended."""
        try:
            return int(os.pread(self._statm, _BUFFER, 0).split()[1]) * _PAGE_BYTES
        except ProcessLookupError:
            return 0

    def used(self) -> int:
        """Never less than the truth: pages that forked processes still share are counted for each of them."""
        started = descendants_of(self._pid)
        return self.resident() + sum(map(_resident, started)) + _unmapped_bytes([self._pid, *started])

    def exact(self) -> int:
        """Shared pages are shared out. Takes milliseconds where much is mapped."""
        if not (started := descendants_of(self._pid)):
            return self.used()
        pids = [self._pid, *started]
        return sum(map(_proportional, pids)) + _unmapped_bytes(pids)

    def close(self) -> None:
        os.close(self._statm)


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return _resident(pid)


def _unmapped_bytes(pids: Sequence[int]) -> int:
    """What lies in files without a name is memory also where it is not mapped; where it is, it is resident."""
    nameless = _nameless_bytes(pids)
    return max(0, nameless - sum(map(_mapped_bytes, pids))) if nameless else 0


def _mapped_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssShmem:"):
                return int(line.split()[1]) * 1024
    return 0


def _nameless_bytes(pids: Sequence[int]) -> int:
    """Of memfds and of deleted files in /dev/shm; each file once, however many descriptors there are of it."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
            for descriptor in itertools.islice(descriptors, _DESCRIPTORS):
                with contextlib.suppress(OSError):
                    file = descriptor.stat()
                    if file.st_nlink == 0 and file.st_dev in _memory_devices():
                        sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


@functools.cache
def _memory_devices() -> frozenset[int]:
    """File systems that are memory: that of all memfds, which is mounted nowhere, and that of shared memory."""
    fd = os.memfd_create("taskgate-device", os.MFD_CLOEXEC)
    try:
        devices = {os.fstat(fd).st_dev}
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):
        devices.add(Path("/dev/shm").stat().st_dev)  # nosec B108 # nothing is put there
    return frozenset(devices)


def zombie_peak_bytes(pid: int) -> int | None:
    """Most that a dead child, not reaped yet, had in memory; None where the kernel does not say.

    The kernel starts a child's account with what its parent had: below that nothing is known.
    """
    number = _WAITID.get(os.uname().machine)
    usage = (ctypes.c_long * 18)()  # struct rusage: two times of two words each, then ru_maxrss in KiB
    info = ctypes.create_string_buffer(128)
    if number is None or _libc.syscall(number, os.P_PID, pid, info, os.WEXITED | os.WNOWAIT | os.WNOHANG, usage):
        return None
    return usage[4] * 1024 if usage[4] > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss else None


_WAITID = {"x86_64": 247, "aarch64": 95}
"""The system call has an argument that the library's function hides."""
_libc = ctypes.CDLL(None, use_errno=True)


class OomKills:
    """Whether the kernel has just killed a process of this control group for want of memory."""

    def __init__(self) -> None:
        self._files = [file for file in _oom_files() if file.exists()]
        self._count = self._read()
        self._rose_s = -math.inf

    def recent(self) -> bool:
        """Within the last second: one shortage may take several children."""
        count, now_s = self._read(), time.monotonic()
        if count != self._count:
            self._count, self._rose_s = count, now_s
        return now_s - self._rose_s < 1

    def _read(self) -> int:
        for file in self._files:
            with contextlib.suppress(OSError, ValueError):
                for line in file.read_text().splitlines():
                    name, _, count = line.partition(" ")
                    if name == "oom_kill":
                        return int(count)
        return 0


def _oom_files() -> list[Path]:
    """Where the count may stand: cgroup v2 and v1, the own group or, in a container, what it sees as the root."""
    root = Path("/sys/fs/cgroup")
    groups = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups[controllers] = path.lstrip("/")
    return [
        root / groups.get("", "") / "memory.events",
        root / "memory" / groups.get("memory", "") / "memory.oom_control",
        root / "memory" / "memory.oom_control",
    ]

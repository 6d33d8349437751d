"""What the kernel knows about a child: CPU time, time spent waiting for a CPU, memory."""

import contextlib
import ctypes
import functools
import itertools
import math
import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

from workers.orphans import descendants_of

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_BUFFER = 1024
_DESCRIPTORS = 256
"""Looked through for memfds: a task with thousands of files must not cost the supervisor its time."""


class Numbers(NamedTuple):
    cpu_ms: int
    """User and system time of all its threads."""
    wait_ms: int
    """Time that its threads of now stood in a run queue."""
    rss_bytes: int


class ProcStat:
    """Reads one process's files, which it keeps open: a sample is a few reads, no path look-ups.

    Its files belong to the process, not to the number: a new process of the same id is never read by mistake.
    """

    def __init__(self, pid: int) -> None:
        folder = Path(f"/proc/{pid}")
        self._stat = os.open(folder / "stat", os.O_RDONLY | os.O_CLOEXEC)
        self._tasks = folder / "task"
        self._schedstats: dict[str, int] = {}

    def sample(self) -> Numbers | None:
        """None when the process is gone."""
        try:
            fields = os.pread(self._stat, _BUFFER, 0).rpartition(b")")[2].split()
        except ProcessLookupError:
            return None
        # proc(5): utime and stime are 14 and 15, rss is 24; the part behind the name starts with 3.
        cpu_ms = (int(fields[11]) + int(fields[12])) * _TICK_MS
        return Numbers(int(cpu_ms), self._wait_ns() // 1_000_000, int(fields[21]) * _PAGE_BYTES)

    def close(self) -> None:
        os.close(self._stat)
        for fd in self._schedstats.values():
            os.close(fd)
        self._schedstats.clear()

    def _wait_ns(self) -> int:
        """Summed over its threads: the process's own file knows the main thread only."""
        total = 0
        try:
            threads = {path.name for path in self._tasks.iterdir()}
        except OSError:
            return 0
        for gone in self._schedstats.keys() - threads:
            os.close(self._schedstats.pop(gone))
        for thread in threads:
            with contextlib.suppress(OSError):
                if thread not in self._schedstats:
                    path = self._tasks / thread / "schedstat"
                    self._schedstats[thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                total += int(os.pread(self._schedstats[thread], _BUFFER, 0).split()[1])
        return total


class Memory:
    """What a process uses of the machine's memory, together with what it started; a few short reads each time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)

    def resident(self) -> int:
        """Of the process alone; 0 once it has ended."""
        return self._pages()[0] * _PAGE_BYTES

    def used(self) -> int:
        """Never less than the truth: pages that forked processes still share are counted for each of them."""
        resident, shared = (pages * _PAGE_BYTES for pages in self._pages())
        # What lies in memfds is memory also where it is not mapped, and counts once where it is.
        alone = resident - shared + max(shared, _memfd_bytes(self._pid))
        return alone + sum(_resident(pid) for pid in descendants_of(self._pid))

    def exact(self) -> int:
        """Shared pages are shared out. Takes milliseconds where much is mapped."""
        if not (started := descendants_of(self._pid)):
            return self.used()
        _, shared = self._pages()
        unmapped = max(0, _memfd_bytes(self._pid) - shared * _PAGE_BYTES)
        return unmapped + sum(map(_proportional, (self._pid, *started)))

    def close(self) -> None:
        os.close(self._statm)

    def _pages(self) -> tuple[int, int]:
        try:
            _, resident, shared, *_ = os.pread(self._statm, _BUFFER, 0).split()
        except ProcessLookupError:
            return 0, 0
        return int(resident), int(shared)


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


def _memfd_bytes(pid: int) -> int:
    """Each file once, however many descriptors there are of it."""
    sizes: dict[int, int] = {}
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in itertools.islice(descriptors, _DESCRIPTORS):
            with contextlib.suppress(OSError):
                file = descriptor.stat()
                if file.st_dev == _memfd_device():
                    sizes[file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


@functools.cache
def _memfd_device() -> int:
    """All memfds lie on one file system, which is mounted nowhere."""
    fd = os.memfd_create("taskgate-device", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


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


def oom_kills() -> int:
    """How many processes of this control group the kernel has killed for want of memory; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text().partition("0::")[2].splitlines()[0]
        for line in (Path("/sys/fs/cgroup") / group.lstrip("/") / "memory.events").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0

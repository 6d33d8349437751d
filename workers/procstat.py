"""What the kernel knows about a child: CPU time, time spent waiting for a CPU, resident memory."""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_BUFFER = 1024


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


def oom_kills() -> int:
    """How many processes of this control group the kernel has killed for want of memory; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text().partition("0::")[2].splitlines()[0]
        for line in (Path("/sys/fs/cgroup") / group.lstrip("/") / "memory.events").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0

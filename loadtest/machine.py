"""The machine under measurement: processes of our own, their CPU time, and what others use meanwhile."""

import contextlib
import fcntl
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOCK = Path(tempfile.gettempdir()) / "bench.lock"
NOISE_CORES = 0.15
"""A run during which other processes used more than this is repeated, and marked where it counts."""


@dataclass(frozen=True)
class Stat:
    parent: int
    session: int
    cpu_s: float
    """With that of the children it has reaped."""
    rss_bytes: int


def _processes() -> dict[int, Stat]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                cpu_s = sum(map(int, fields[11:15])) / _TICKS_PER_S
                found[int(folder.name)] = Stat(int(fields[1]), int(fields[3]), cpu_s, int(fields[21]) * _PAGE_BYTES)
    return found


_started: "list[Group]" = []
"""Those of this process; whoever is interrupted may not get to stop its own."""


class Group:
    """One command and everything it starts, also what moves into sessions of its own."""

    def __init__(self, argv: Sequence[str | Path], *, environ: Mapping[str, str], log: Path) -> None:
        self._log: IO[bytes] = log.open("ab")
        self.log = log
        self._process = subprocess.Popen(
            list(map(str, argv)),
            cwd=ROOT,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.pid = self._process.pid
        _started.append(self)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def cpu_s(self) -> float:
        processes = _processes()
        return sum(processes[pid].cpu_s for pid in self._members(processes))

    def first_cpu_s(self) -> float:
        """Of the command itself, without what it started and has not reaped."""
        found = _processes().get(self.pid)
        return found.cpu_s if found else 0.0

    def signal(self, number: signal.Signals) -> None:
        """To the command alone, not to what it started."""
        self._process.send_signal(number)

    def rss_bytes(self) -> int:
        processes = _processes()
        return sum(processes[pid].rss_bytes for pid in self._members(processes))

    def first_rss_bytes(self) -> int:
        """Of the command itself."""
        found = _processes().get(self.pid)
        return found.rss_bytes if found else 0

    def processes(self) -> dict[int, Stat]:
        """Everything of it that lives now, by process id."""
        processes = _processes()
        return {pid: processes[pid] for pid in self._members(processes)}

    def wait(self, within_s: float) -> int:
        """The command's exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(within_s)

    def holds(self, pid: int) -> bool:
        return pid in self._members(_processes())

    def vanish(self) -> None:
        """Kill everything of it at once, as when its machine dies."""
        _kill(self._members(_processes()))

    def stop(self, *, grace_s: float = 5.0) -> None:
        """Ask, wait, then kill what is left. Idempotent."""
        members = self._members(_processes())
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        _kill(members | self._members(_processes()))
        self._process.wait()
        self._log.close()
        if self in _started:  # its number may be another's from now on
            _started.remove(self)

    def _members(self, processes: Mapping[int, Stat]) -> set[int]:
        members = {pid for pid, stat in processes.items() if stat.session == self.pid or pid == self.pid}
        members &= processes.keys()
        grown = True
        while grown:
            more = {pid for pid, stat in processes.items() if stat.parent in members} - members
            members |= more
            grown = bool(more)
        return members


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """For a whole command: SIGTERM ends it as Ctrl-C does, and whatever ends it, no group runs on."""

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` and make pass it on: it comes more than once
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        for group in tuple(_started):
            group.stop()
        _end_unknown()


def _end_unknown() -> None:
    """Who is interrupted while it starts a process has one that no group knows of."""
    for pid, stat in _processes().items():
        if stat.parent == os.getpid():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Foreign:
    """Cores used by processes that have no part in the measurement, from construction on."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._since = time.monotonic()
        self._before = self._foreign_s()

    def cores(self) -> float:
        return max(0.0, (self._foreign_s() - self._before) / (time.monotonic() - self._since))

    def _foreign_s(self) -> float:
        fields = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
        busy_s = (sum(fields[:3]) + sum(fields[5:])) / _TICKS_PER_S  # all but idle and iowait
        own = os.times()
        own_s = own.user + own.system + own.children_user + own.children_system
        return busy_s - own_s - sum(group.cpu_s() for group in self._groups)


def wait_until_quiet(groups: Sequence[Group], *, within_s: float) -> None:
    """Return once others use less than a tenth of a core, or when the time is up."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        foreign = Foreign(groups)
        time.sleep(0.4)
        if foreign.cores() < 0.1:
            return


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the machine's bench lock: benchmarks of several checkouts take turns."""
    with _LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clean_environ(**more: str) -> dict[str, str]:
    """Our environment without what would change a service: settings, proxies, Python switches."""
    strays = ("TASKGATE_", "PYTHON", "BENCH_", "UVICORN_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(strays) and not name.lower().endswith("_proxy")
    }
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | more


def facts() -> dict[str, object]:
    """What a reader of the results must know of this machine."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": model[0].split(":", 1)[1].strip() if model else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": os.getloadavg()[0],
    }

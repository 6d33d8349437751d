"""Processes of chaos' own, looked up in /proc, and places where one is kept running as a process manager would."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.machine import ROOT

YOUNG_S = 10.0
"""A process may die of SIGTERM as long as it may not have got to its handlers."""
_PR_SET_CHILD_SUBREAPER = 36
_TETHER = ROOT / "taskgate" / "up" / "tether.py"


def adopt_orphans() -> None:
    """What loses its parent becomes our child: nothing that was started can hide from `descendants`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    found = children_of(pid)
    return found + [each for child in found for each in descendants(child)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def lives(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def until(holds: Callable[[], bool], *, within_s: float) -> bool:
    """Wait until it holds; False when the time is up."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def bury_orphans(known: set[int]) -> None:
    """Take the exit of adopted processes; `known` are those that somebody else waits for."""
    for pid in children_of(os.getpid()):
        if pid not in known and not lives(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


@dataclass
class Place:
    """Where one process of a kind is kept running. It dies with us."""

    name: str
    argv: Sequence[str | Path]
    environ: Mapping[str, str]
    folder: Path
    asked: str = ""
    """The signal that we sent this process so that it ends; an end without one is its own doing."""
    process: subprocess.Popen[bytes] | None = None
    exits: list[str] = field(default_factory=list)
    """What was wrong with the ends of its processes."""
    starts: int = 0
    begun_s: float = 0.0
    _was_young: bool = False

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """None while it is not there."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None

    def start(self) -> None:
        self.asked = ""
        self.starts += 1
        self.begun_s = time.monotonic()
        command = [sys.executable, str(_TETHER), str(int(signal.SIGKILL)), str(os.getpid()), *map(str, self.argv)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it."""
        if (pid := self.pid) is not None:
            self._was_young = time.monotonic() - self.begun_s < YOUNG_S
            self.asked = "SIGKILL" if "SIGKILL" in (self.asked, number.name) else number.name
            send(pid, number)

    def ended(self) -> bool:
        """Whether its process has ended since `start`; judges the end, once."""
        if self.process is None or self.process.poll() is None:
            return False
        code, self.process = self.process.returncode, None
        if not self.asked:
            self.exits.append(f"{self.name} ended by itself with {code}, start {self.starts}")
        elif self.asked != "SIGKILL" and code != 0 and not (self._was_young and code < 0):
            self.exits.append(f"{self.name} ended with {code} after {self.asked}, start {self.starts}")
        return True

    def gone(self) -> bool:
        """Nothing runs here."""
        return self.ended() or self.process is None

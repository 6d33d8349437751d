"""What tasks have started: found below the process that ran them, killed and reaped."""

import contextlib
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import structlog

MARK = "_TASKGATE_CHILD_OF"
"""In the environment of children, and so of what their tasks start: an orphan without it is none of ours."""

log = structlog.get_logger()


class _Stat(NamedTuple):
    state: str
    group: int


def children_of(pid: int) -> list[int]:
    """Of all its threads; empty where the kernel does not say."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def descendants_of(pid: int) -> list[int]:
    """Parents before their children."""
    children = children_of(pid)
    return children + [each for child in children for each in descendants_of(child)]


def group_lives(group: int) -> bool:
    """Whether a process of that group, other than its leader, is left to this one and not yet dead."""
    return any(
        pid != group and (stat := _stat(pid)) is not None and stat.group == group and stat.state not in "ZX"
        for pid in children_of(os.getpid())
    )


def end_all(pids: Collection[int]) -> None:
    """Kill them, and reap those that are this process's own once they are dead."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


class Orphans:
    """A supervisor adopts what its dead children leave behind in sessions of their own, and ends it.

    Children adopt too, so that nothing gets here while its child lives.
    """

    def __init__(self, ours: Callable[[], Collection[int]]) -> None:
        """`ours`: processes that this one has started and reaps itself."""
        self._ours = ours
        self._there = frozenset(children_of(os.getpid()))
        """From before: whoever became this process by exec may have had children."""
        self._killed: set[int] = set()

    def sweep(self) -> bool:
        """Kill and reap what was left behind; whether there was anything, so that more may follow."""
        found = False
        left = set(children_of(os.getpid())) - set(self._ours()) - self._there
        self._killed &= left
        for pid in left:
            stat = _stat(pid)
            if stat is None or stat.state in "ZX":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            elif pid in self._killed:
                found = True  # it is dying, and has no environment any more
            elif _is_marked(pid):
                log.warning("a dead child left a process behind; it is killed", pid=pid)
                self._killed.add(pid)
                for each in (pid, *descendants_of(pid)):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(each, signal.SIGKILL)
                found = True
        return found


def _stat(pid: int) -> _Stat | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Stat(fields[0], int(fields[2]))


def _is_marked(pid: int) -> bool:
    """By the environment with which it, or whoever forked it, was executed."""
    try:
        return f"{MARK}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False

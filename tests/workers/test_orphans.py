"""What tasks have started ends with them: the group before its end is told, what left the group when it is found."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskgate.platform import adopt_orphans
from tests.processes import state_of
from tests.workers.conftest import Watched, until
from workers.orphans import MARK, Orphans

Child = Callable[..., Watched]


@pytest.fixture
def adopting() -> Iterator[None]:
    """This process gets what its descendants leave behind, as a supervisor does."""
    adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def left_behind(**environ: str) -> int:
    """A process in a session of its own, whose parent is gone: then it is ours."""
    command = ["sh", "-c", "setsid sleep 3600 >/dev/null 2>&1 & echo $!"]
    return int(subprocess.check_output(command, env={"PATH": os.environ["PATH"], **environ}))


async def executed(pid: int) -> None:
    await until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")


@pytest.mark.usefixtures("adopting")
async def test_what_a_task_left_behind_is_killed_and_reaped() -> None:
    orphans = Orphans(lambda: ())
    pid = left_behind(**{MARK: "1"})
    await executed(pid)

    assert orphans.sweep()
    await until(lambda: not orphans.sweep())
    assert state_of(pid) == ""


@pytest.mark.usefixtures("adopting")
async def test_what_no_task_has_started_is_left_alone() -> None:
    before = left_behind(**{MARK: "1"})
    started: set[int] = set()
    orphans = Orphans(lambda: started)
    theirs, ours = left_behind(), left_behind(**{MARK: "1"})
    started.add(ours)
    pids = {before, theirs, ours}
    for pid in pids:
        await executed(pid)

    assert not orphans.sweep()
    await until(lambda: {state_of(pid) for pid in pids} == {"S"})
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.usefixtures("adopting")
async def test_an_end_is_told_when_the_last_of_the_group_has_ended(child: Child) -> None:
    """One with 200 MiB is still dying when its parent is long gone."""
    watched = await child().ready()
    orphans = Orphans(lambda: {watched.process.pid})
    living: list[int] = []
    watched.exited.add_done_callback(lambda _: living.extend(_living(watched.process.pid)))

    watched.hand("leaves_behind", 200)

    assert (await watched.exited).code == 3
    assert living == []
    await until(lambda: not orphans.sweep())


def _living(group: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found

"""A rig whose handlers tick, and what their ticks show."""

import contextlib
import os
import signal
import time
from itertools import pairwise
from typing import Any, NamedTuple

from tests.conftest import eventually
from tests.processes import parent_of, whole_lines
from tests.system.rig import FINAL, Rig, children_of, command_of


class Ran(NamedTuple):
    """One attempt by its ticks; boot clock in ns."""

    attempt: int
    first: int
    last: int
    pid: int


class Ticking:
    def __init__(self, rig: Rig, *, lease_s: float) -> None:
        self.rig = rig
        # Without the append-only file: a disk that others keep busy would be a Redis that is away.
        rig.server.stop()
        rig.server.start()
        rig.settings |= {"TASKGATE_LEASE_S": str(lease_s), "TASKGATE_HANDLERS": "tests.system.lease_jobs"}

    def attempts(self, task_id: str) -> list[Ran]:
        """What ran of a task, in the order of the attempts."""
        try:
            lines = whole_lines(self.rig.folder / "ticks" / task_id)
        except FileNotFoundError:
            return []
        found: dict[tuple[int, int], Ran] = {}
        for attempt, at, pid in (map(int, line.split()) for line in lines):
            before = found.get((attempt, pid), Ran(attempt, at, at, pid))
            found[attempt, pid] = Ran(attempt, min(at, before.first), max(at, before.last), pid)
        return sorted(found.values())

    def overlap_ns(self, task_id: str) -> int:
        """For how long two attempts ran at once; negative: how far apart they were."""
        return max((earlier.last - later.first for earlier, later in pairwise(self.attempts(task_id))), default=-1)

    async def started(self, task_id: str, attempt: int = 1, *, within_s: float = 60) -> Ran:
        async def runs() -> list[Ran]:
            return [ran for ran in self.attempts(task_id) if ran.attempt == attempt]

        return (await eventually(runs, len, within_s=within_s, every_s=0.005))[0]

    async def held(self, task_type: str, payload: dict[str, Any], **fields: Any) -> tuple[str, Ran, int]:
        """A task whose first attempt runs, that attempt, and the supervisor that has it.

        A supervisor that was held up for a lease may have lost the first before it ran: then it is another task.
        """

        async def runs() -> list[Ran]:
            return self.attempts(task_id)

        while True:
            task_id = await self.rig.submit(task_type, payload, **fields)
            first = (await eventually(runs, len, within_s=60, every_s=0.005))[0]
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if first.attempt == 1:
                    return task_id, first, parent_of(first.pid)
            await self.ended(task_id)

    async def status(self, task_id: str) -> str:
        [record] = await self.rig.store.read([task_id])
        assert record is not None
        return str(record.status)

    async def ended(self, task_id: str, *, within_s: float = 90) -> str:
        return await eventually(lambda: self.status(task_id), lambda status: status in FINAL, within_s=within_s)

    async def until_whole(self, *pids: int, within_s: float = 60) -> None:
        """Each of these supervisors beats, has its guard and an idle child."""

        async def whole() -> set[int]:
            return {
                worker.pid
                for worker in await self.rig.store.workers()
                if worker.guard == "ok" and any(child["state"] == "idle" for child in worker.children)
            }

        await eventually(whole, lambda found: found >= set(pids), within_s=within_s)


def guard_of(supervisor: int) -> int:
    [found] = [pid for pid in children_of(supervisor) if "workers/guard.py" in command_of(pid)]
    return found


def freeze(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def thaw(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)

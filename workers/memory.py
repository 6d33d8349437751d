"""Memory limits while tasks run: the next look comes before a task could pass its limit at full speed."""

import asyncio
from collections.abc import Callable, Mapping

from taskgate.contract.models import TypeInfo
from workers.children import ChildProcess
from workers.holdings import Holding, Holdings

FILL_BYTES_PER_S = 4 * 1024**3
"""No task fills memory faster: writing fresh pages runs at 1 to 3 GB/s."""
SHORTEST_S, LONGEST_S = 0.005, 0.25
"""Between two looks."""
SPARED_S = 0.01
"""For its stack, one that is over its limit lives on for so long, if it cannot take much more until then."""


class MemoryWatch:
    """Looks at children that hold tasks with a limit, and at no others.

    What a task allocates ends as MemoryError at the limit, by RLIMIT_DATA in the child. Shared mappings, memfds and the
    task's own processes are seen here alone, and end it a sixteenth above: whoever handles MemoryError may go on.
    """

    def __init__(
        self, holdings: Holdings, *, types: Mapping[str, TypeInfo], over_limit: Callable[[Holding, int, float], None]
    ) -> None:
        """`over_limit`: told what it uses, and for how long it can be spared."""
        self._holdings = holdings
        self._types = types
        self._over_limit = over_limit
        self._watched: set[ChildProcess] = set()
        self._loop = asyncio.get_running_loop()

    def watch(self, holding: Holding, child: ChildProcess) -> None:
        """The child was given that task."""
        if self._types[holding.task.spec.type].memory_limit_mb is not None and child not in self._watched:
            self._watched.add(child)
            self._look(child)

    def fits(self, task_type: str, child: ChildProcess) -> bool:
        """Whether what earlier tasks left in an idle child leaves this type a quarter of its limit."""
        limit_mb = self._types[task_type].memory_limit_mb
        return limit_mb is None or child.load > 0 or child.memory.resident() * 4 <= (limit_mb << 20) * 3

    def _look(self, child: ChildProcess) -> None:
        limits = self._limits(child)
        if child.exit is not None or not limits:
            self._watched.discard(child)
            return
        used = child.memory.used()
        running = child.running()
        if (holding := self._holdings.of(child, running)) is not None:
            holding.rss_peak = max(holding.rss_peak, used)
            limit = limits.get(running)
            if limit is not None and used > _most(limit) and (used := child.memory.exact()) > _most(limit):
                self._over_limit(holding, used, min(SPARED_S, (limit * 1.15 - used) / FILL_BYTES_PER_S))
        wait_s = (min(limits.values()) - used) / FILL_BYTES_PER_S
        self._loop.call_later(min(LONGEST_S, max(SHORTEST_S, wait_s)), self._look, child)

    def _limits(self, child: ChildProcess) -> dict[int, int]:
        """Bytes, by sequence, of those of its tasks that have a limit."""
        held = ((seq, self._holdings.of(child, seq)) for seq in child.outstanding)
        return {
            seq: limit_mb << 20
            for seq, holding in held
            if holding is not None and (limit_mb := self._types[holding.task.spec.type].memory_limit_mb)
        }


def _most(limit: int) -> int:
    return limit + limit // 16

"""Types that nobody serves: their tasks fail when no live supervisor has served them for long enough."""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.models import Served
from taskgate.contract.script import BATCH
from taskgate.contract.store import Store
from workers.lease import Lease
from workers.metrics import Metrics

log = structlog.get_logger()

LONGEST_PAUSE_S = 10.0


class Unserved:
    """Counts how long it has itself seen a lane unserved, on its monotonic clock and in unbroken contact with Redis.

    A supervisor that serves nothing yet, as all do right after a start, does not look. Time in which this process
    stood still was not watched: however long, it counts as two pauses at most.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        *,
        worker_id: str,
        after_s: float,
        served: Callable[[], Sequence[Served]],
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._lease = lease
        self._worker_id = worker_id
        self._after_s = after_s
        self._served = served
        self._metrics = metrics or Metrics()
        self._pause_s = min(LONGEST_PAUSE_S, after_s / 4)
        self._looked_s = 0.0
        self._seen_s: dict[tuple[int, str, str], float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._pause_s)
            await self._lease.contact.wait()
            try:
                await self.look(time.monotonic())
            except (StoreUnavailable, OutcomeUnknown):
                self.contact_lost()
                self._lease.silent()

    def contact_lost(self) -> None:
        self._seen_s.clear()

    async def look(self, now_s: float) -> None:
        """Take in which lanes are unserved; fail what waits in those that were for long enough."""
        passed_s = min(now_s - self._looked_s, 2 * self._pause_s)
        self._looked_s = now_s
        seen: dict[tuple[int, str, str], float] = {}
        if served := self._served():
            for partition in self._store.partitions:
                for queue, task_type in await self._store.unserved(partition, served):
                    lane = partition, queue, task_type
                    seen[lane] = self._seen_s[lane] + passed_s if lane in self._seen_s else 0.0
        self._seen_s = seen
        for lane in [lane for lane, seen_s in seen.items() if seen_s >= self._after_s]:
            await self._fail(*lane)

    async def _fail(self, partition: int, queue: str, task_type: str) -> None:
        total = 0
        more = True
        while more:
            failed = await self._store.fail_unserved(
                partition, self._worker_id, queue=queue, task_type=task_type, after_s=self._after_s
            )
            if failed:
                total += failed
                served = {each.queue for each in self._served()}
                self._metrics.unserved(queue, task_type, failed=failed, served=served)
            more = failed == BATCH
        if total:
            log.warning("nobody serves this type, its tasks failed", queue=queue, task_type=task_type, tasks=total)

"""The agenda: wakes when the next scheduled, retrying or deadlined task is due, and does what is due."""

import asyncio
import time

import structlog

from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.store import Store
from workers.lease import Lease

log = structlog.get_logger()


class Agenda:
    """Every supervisor keeps the whole agenda: doing what is due twice has no second effect."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._due: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._offset_ms = time.time() * 1000 - time.monotonic() * 1000

    def now_ms(self) -> int:
        """Redis' clock, as of the last beat, carried on by the monotonic one."""
        return int(time.monotonic() * 1000 + self._offset_ms)

    def clock_is(self, now_ms: int) -> None:
        self._offset_ms = now_ms - time.monotonic() * 1000

    def next_due(self, partition: int, at_ms: int) -> None:
        """Something is due at that time (Redis' clock); 0: nothing is."""
        if at_ms and at_ms < self._due.get(partition, at_ms + 1):
            self._due[partition] = at_ms
            self._wake.set()

    async def run(self) -> None:
        """Do what is due until cancelled."""
        while True:
            self._wake.clear()
            now_ms = self.now_ms()
            for partition in [p for p, at_ms in self._due.items() if at_ms <= now_ms]:
                await self._do(partition)
            await self._pause()

    async def _do(self, partition: int) -> None:
        del self._due[partition]
        try:
            _, next_due_ms = await self._store.promote(partition)
        except (StoreUnavailable, OutcomeUnknown) as error:
            log.warning("could not do what is due; the next beat says what is", error=str(error))
            self._lease.silent()
            return
        self.next_due(partition, next_due_ms)

    async def _pause(self) -> None:
        next_ms = min(self._due.values(), default=None)
        timeout_s = None if next_ms is None else max(0.001, (next_ms - self.now_ms() + 1) / 1000)
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass

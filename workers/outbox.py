"""Ends of attempts on their way to the store: grouped, kept and repeated until it answers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.group import Group
from taskgate.contract.models import Finish, HandBack, Report
from taskgate.contract.store import Store
from workers.lease import Lease

log = structlog.get_logger()
T = TypeVar("T")


class Outbox:
    """Finishes and hand-backs may be repeated by token, so they are, as soon as a beat has been answered again.

    Reports are not: the next one says it better.
    """

    def __init__(self, store: Store, worker_id: str, lease: Lease) -> None:
        self._store = store
        self._worker_id = worker_id
        self._lease = lease
        self._finishes = [
            Group(self._repeated(store.finish, partition), size=lambda item: len(item.result) + len(item.error))
            for partition in store.partitions
        ]
        self._hand_backs = [Group(self._repeated(store.hand_back, partition)) for partition in store.partitions]
        self._reports = [Group(self._once(partition)) for partition in store.partitions]

    def finish(self, partition: int, item: Finish) -> asyncio.Future[str]:
        """The new status, `done`, `stale` or `not_found`."""
        return self._finishes[partition](item)

    def hand_back(self, partition: int, item: HandBack) -> asyncio.Future[str]:
        return self._hand_backs[partition](item)

    def report(self, partition: int, item: Report) -> asyncio.Future[str | None]:
        """The store's word, None when it could not be reached."""
        return self._reports[partition](item)

    def _repeated(
        self, call: Callable[[int, str, Sequence[T]], Awaitable[list[str]]], partition: int
    ) -> Callable[[Sequence[T]], Awaitable[Sequence[str]]]:
        async def deliver(items: Sequence[T]) -> Sequence[str]:
            while True:
                await self._lease.contact.wait()
                try:
                    return await call(partition, self._worker_id, items)
                except (StoreUnavailable, OutcomeUnknown) as error:
                    log.warning("store did not answer, will repeat", error=str(error), items=len(items))
                    self._lease.silent()

        return deliver

    def _once(self, partition: int) -> Callable[[Sequence[Report]], Awaitable[Sequence[str | None]]]:
        async def deliver(items: Sequence[Report]) -> Sequence[str | None]:
            if not self._lease.contact.is_set():
                return [None] * len(items)
            try:
                return await self._store.report(partition, self._worker_id, items)
            except (StoreUnavailable, OutcomeUnknown):
                self._lease.silent()
                return [None] * len(items)

        return deliver

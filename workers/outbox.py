"""Ends of attempts on their way to the store: grouped, kept and repeated until it answers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import structlog

from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.group import Group, Sink
from taskgate.contract.models import Finish, HandBack, Report
from taskgate.contract.states import ErrorKind
from taskgate.contract.store import Store
from workers.failures import error_json
from workers.lease import Lease

log = structlog.get_logger()
T = TypeVar("T", bound=Finish | HandBack | Report)


def _size(item: Finish) -> int:
    return len(item.result) + len(item.error) + sum(len(each.payload) for each in item.submitted)


def _report_size(item: Report) -> int:
    return len(item.checkpoint) + sum(len(data) for _, data in item.events) + sum(len(data) for data, _ in item.logs)


def _writable(item: Finish, error: Exception) -> Finish:
    """The failure of an attempt whose own end the store cannot take.

    Raises:
        Exception: it was a failure already.
    """
    if item.outcome == "failed":
        raise error
    message = f"the attempt's end cannot be written: {type(error).__name__}"
    return Finish(
        id=item.id,
        epoch=item.epoch,
        outcome="failed",
        error=error_json(ErrorKind.RESULT, message),
        retention_ms=item.retention_ms,
        dead_retention_ms=item.dead_retention_ms,
    )


class Outbox:
    """Finishes and hand-backs may be repeated by token, so they are, as soon as a beat has been answered again.

    So are reports with events or a checkpoint, by their number. Others are not: the next one says it better.
    """

    def __init__(self, store: Store, worker_id: str, lease: Lease) -> None:
        self._store = store
        self._worker_id = worker_id
        self._lease = lease
        self.facts: Callable[[str], dict[str, Any]] = lambda task_id: {"task_id": task_id}
        """Whose a line about that task is; set by whoever holds it."""
        self._finishes = [
            Group(self._repeated(store.finish, partition, instead=_writable), size=_size)
            for partition in store.partitions
        ]
        self._hand_backs = [Group(self._repeated(store.hand_back, partition)) for partition in store.partitions]
        self._reports = [Group(self._once(partition)) for partition in store.partitions]
        self._lasting: list[Group[Report, str | None]] = [
            Group(self._repeated(store.report, partition), size=_report_size) for partition in store.partitions
        ]

    def finish(self, partition: int, item: Finish) -> asyncio.Future[str]:
        """The new status, `done`, `stale` or `not_found`."""
        return self._finishes[partition](item)

    def end(self, partition: int, item: Finish | HandBack, sink: Sink[str]) -> None:
        """Finish or hand back; the new status, or as above, goes to `sink`."""
        if isinstance(item, Finish):
            self._finishes[partition].put(item, sink)
        else:
            self._hand_backs[partition].put(item, sink)

    def hand_back(self, partition: int, item: HandBack) -> asyncio.Future[str]:
        return self._hand_backs[partition](item)

    def report(self, partition: int, item: Report, *, lasting: bool = False) -> asyncio.Future[str | None]:
        """The store's word, None when it could not be reached. `lasting`: not before it is."""
        if lasting:
            return self._lasting[partition](item)
        return self._reports[partition](item)

    def _repeated(
        self,
        call: Callable[[int, str, Sequence[T]], Awaitable[list[str]]],
        partition: int,
        *,
        instead: Callable[[T, Exception], T] | None = None,
    ) -> Callable[[Sequence[T]], Awaitable[Sequence[str]]]:
        async def deliver(items: Sequence[T]) -> Sequence[str]:
            while True:
                await self._lease.contact.wait()
                try:
                    return await call(partition, self._worker_id, items)
                except (StoreUnavailable, OutcomeUnknown) as error:
                    log.warning("store did not answer, will repeat", error=str(error), items=len(items))
                    self._lease.silent()
                except Exception as error:  # one end that cannot be written must not take others along
                    if len(items) > 1:
                        return [(await deliver([item]))[0] for item in items]
                    log.error("an end cannot be written", error=repr(error), **self.facts(items[0].id))
                    if instead is None:
                        raise
                    items = [instead(items[0], error)]

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

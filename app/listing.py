"""`GET /tasks`: a tenant's tasks, newest first, by filters; how far one page looks is bounded, whatever it finds."""

import asyncio
import math
from typing import NamedTuple

from starlette.datastructures import QueryParams

from app.cursors import Ms, sealed, unsealed
from app.errors import Problem
from app.filters import (
    BY_QUEUE,
    BY_TYPE,
    CURSOR,
    LIMIT,
    METADATA,
    TEXT,
    TIME,
    Parameters,
    Wanted,
    check_names,
    is_metadata,
    limit_of,
    name_of,
    parameter,
    time_ms_of,
)
from taskgate.contract.models import Mark, TaskRecord
from taskgate.contract.script import BATCH
from taskgate.contract.states import Status
from taskgate.contract.store import Store

SCANNED_A_PAGE = 1_000

PARAMETERS: Parameters = [
    parameter("status", TEXT, "one or more, with commas"),
    BY_TYPE,
    BY_QUEUE,
    parameter("metadata.{key}", TEXT, "what your metadata has under that key; values that are no text as JSON"),
    parameter("created_after", TIME, "then or later"),
    parameter("created_before", TIME, "before then"),
    LIMIT,
    CURSOR,
]

_KNOWN = {each["name"] for each in PARAMETERS}
_ANY = (Wanted(), Wanted(letters=True))


class Request(NamedTuple):
    wanted: Wanted
    limit: int
    start: Mark


def parse(query: QueryParams, tenant: str) -> Request:
    """Raises Problem: a filter that is none, or a cursor that is not of this list."""
    check_names(query, _KNOWN, metadata=True)
    statuses = tuple(sorted({word for given in query.getlist("status") for word in given.split(",")}))
    if unknown := set(statuses) - set(Status):
        raise Problem("bad-request", f"`status`: there is no `{min(unknown)[:64]}`.")
    wanted = Wanted(
        statuses=statuses,
        type=name_of(query, "type"),
        queue=name_of(query, "queue"),
        after_ms=time_ms_of(query, "created_after"),
        before_ms=time_ms_of(query, "created_before"),
        metadata=tuple(sorted((key[len(METADATA) :], value) for key, value in query.items() if is_metadata(key))),
    )
    cursor = query.get("cursor")
    start = Mark(wanted.before_ms) if cursor is None else read_cursor(cursor, wanted, tenant)
    return Request(wanted, limit_of(query), start)


async def find(
    store: Store, tenant: str, wanted: Wanted, *, start: Mark, limit: int
) -> tuple[list[TaskRecord], Mark | None]:
    """Up to `limit` tasks after `start`, and where the next page begins; None: there are no older ones."""
    spans = [_Span(store, partition, tenant, wanted, start) for partition in store.partitions]
    found: list[TaskRecord] = []
    looks = SCANNED_A_PAGE

    def is_before(record: TaskRecord, frontier: Mark) -> bool:
        """Whether it stands in what was looked at up to that mark."""
        return wanted.order(record) >= _order(frontier)

    while True:
        # Up to the newest point that some partition has been looked at, no partition has anything unseen.
        frontier = max((span.reached for span in spans if span.reached is not None), key=_order, default=None)
        ready = sorted(
            (one for one in found if frontier is None or is_before(one, frontier)), key=wanted.order, reverse=True
        )
        if len(ready) > limit:
            return ready[:limit], Mark(*wanted.order(ready[limit - 1]))
        if frontier is None:
            return ready, None
        lagging = [span for span in spans if span.reached == frontier]
        share = min(BATCH, looks // len(lagging), limit + 1 if wanted in _ANY else BATCH)
        if len(ready) == limit or share == 0:
            return ready, frontier
        for records, scanned in await asyncio.gather(*(span.read(share) for span in lagging)):
            found += records
            looks -= scanned


class _Span:
    """How far one partition has been looked through."""

    def __init__(self, store: Store, partition: int, tenant: str, wanted: Wanted, start: Mark) -> None:
        self.reached: Mark | None = start
        """None: to its end."""
        self._store = store
        self._partition = partition
        self._tenant = tenant
        self._wanted = wanted

    async def read(self, looks: int) -> tuple[list[TaskRecord], int]:
        assert self.reached is not None
        page = await self._store.page(
            self._partition,
            self._tenant,
            start=self.reached,
            limit=looks,
            letters=self._wanted.letters,
            till_ms=self._wanted.after_ms,
            statuses=[Status(word) for word in self._wanted.statuses],
            task_type=self._wanted.type,
            queue=self._wanted.queue,
            kind=self._wanted.kind,
        )
        self.reached = page.last
        records = await self._store.read(page.ids) if page.ids else []
        return [one for one in records if one is not None and self._wanted.fits(one)], page.scanned


def _order(mark: Mark) -> tuple[float, str]:
    return math.inf if mark.at_ms is None else mark.at_ms, mark.id


def cursor_of(mark: Mark, wanted: Wanted, tenant: str) -> str:
    return sealed(mark, "list", wanted, tenant)


def read_cursor(cursor: str, wanted: Wanted, tenant: str) -> Mark:
    """Raises Problem: it was made for another list, or by another than us."""
    return Mark(*unsealed(cursor, tuple[Ms, str], "list", wanted, tenant))

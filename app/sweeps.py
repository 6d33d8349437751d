"""Many dead letters at once: found from the oldest on, redriven or deleted batch by batch, so far in one request."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from app.cursors import Ms, sealed, unsealed
from app.errors import Problem, retry_after_s
from app.filters import Wanted
from taskgate.contract.errors import Refused, TaskgateError
from taskgate.contract.ids import is_task_id
from taskgate.contract.models import Limits, Mark
from taskgate.contract.script import BATCH
from taskgate.contract.store import Store

MOST = 1_000
"""So many letters one request looks at, and takes."""

Use = Literal["redrive", "purge"]


class Redriven(msgspec.Struct, kw_only=True):
    """What came of a request to redrive."""

    redriven: int = 0
    refused: int = 0
    """For want of room: they are dead letters as before."""
    skipped: int = 0
    """No dead letters of yours, or no more; or another task has their unique key; or they were spilled and their start
    deadline is over. Those from `next_cursor` on are met again, and not counted yet.
    """
    limit: str | None = None
    """What those that were refused ran into."""
    retry_after_s: int | None = None
    """When there may be room for these."""
    remaining: int = 0
    """So many are still to be looked at."""
    next_cursor: str | None = None
    """Where to go on with the same filter, also with what was refused; null: that was all."""


class Purged(msgspec.Struct, kw_only=True):
    """What came of a request to delete."""

    deleted: int = 0
    remaining: int = 0
    """So many are still to be looked at."""
    next_cursor: str | None = None
    """Where to go on with the same filters; null: that was all."""


class Place(NamedTuple):
    """How far a sweep has come."""

    before_ms: Ms
    """Later ends are left out, so that nothing that fails again meanwhile is met twice."""
    next_ms: Annotated[int, msgspec.Meta(ge=0, le=2**43)]
    """When the next one starts, at a rate; to the year 2248, so that a forged one is a date, too."""
    partition: int
    at_ms: Ms | None
    """With `id` the Mark there."""
    id: str = ""


async def place_of(store: Store, use: Use, wanted: Wanted, tenant: str, cursor: str | None) -> Place:
    """Where a sweep begins or, with a cursor, goes on. Raises Problem: it is not of this sweep."""
    now_ms = await store.now_ms()
    if cursor is None:
        before_ms = now_ms + 1 if wanted.before_ms is None else min(wanted.before_ms, now_ms + 1)
        return Place(before_ms, now_ms, 0, wanted.after_ms)
    place = unsealed(cursor, Place, use, wanted, tenant)
    if place.partition not in store.partitions:
        raise Problem("invalid-cursor")
    return place._replace(next_ms=max(now_ms, place.next_ms))


class Sweeper:
    """What one request does. No batch is larger than a script call may be, and no request than MOST."""

    def __init__(self, store: Store, *, tenant: str, limits: Limits, request_id: str) -> None:
        self._store = store
        self._tenant = tenant
        self._limits = limits
        self._request_id = request_id
        self.taken: list[str] = []
        """Whose status this request has changed."""

    async def redrive(self, wanted: Wanted, place: Place, *, limit: int, rate_per_s: float) -> Redriven:
        answer, next_ms = Redriven(), place.next_ms
        refused_at: Place | None = None

        async def act(ids: Sequence[str], where: Place) -> int:
            nonlocal next_ms, refused_at
            skipped = answer.skipped
            count = await self._redrive(ids, answer, place.before_ms, next_ms, rate_per_s)
            next_ms += round(count * 1000 / rate_per_s) if rate_per_s else 0
            refused_at = refused_at or (where if answer.refused else None)
            if refused_at is not None:
                answer.skipped = skipped  # met again
            return count

        # Past what was refused, too: other queues may have room.
        following = await self._sweep(wanted, place, act, limit)
        following = refused_at or following
        if following is not None:
            await self._go_on(answer, "redrive", following._replace(next_ms=next_ms), wanted)
        return answer

    async def redrive_ids(self, ids: Sequence[str], *, rate_per_s: float) -> Redriven:
        known = [task_id for task_id in dict.fromkeys(ids) if is_task_id(task_id)]
        answer, next_ms = Redriven(skipped=len(ids) - len(known)), await self._store.now_ms()
        by_partition: dict[int, list[str]] = defaultdict(list)
        for task_id in known:
            by_partition[self._store.partition_of(task_id)].append(task_id)
        for together in by_partition.values():
            for first in range(0, len(together), BATCH):
                count = await self._redrive(together[first : first + BATCH], answer, 0, next_ms, rate_per_s)
                next_ms += round(count * 1000 / rate_per_s) if rate_per_s else 0
        return answer

    async def purge(self, wanted: Wanted, place: Place, *, limit: int) -> Purged:
        answer = Purged()

        async def act(ids: Sequence[str], _: Place) -> int:
            count = await self._store.purge_letters(ids, before_ms=place.before_ms, tenant=self._tenant)
            self.taken += ids
            answer.deleted += count
            return count

        following = await self._sweep(wanted, place, act, limit)
        if following is not None:
            await self._go_on(answer, "purge", following, wanted)
        return answer

    async def _go_on(self, answer: Redriven | Purged, use: Use, place: Place, wanted: Wanted) -> None:
        answer.next_cursor = sealed(place, use, wanted, self._tenant)
        for partition in self._store.partitions[place.partition :]:
            since_ms = place.at_ms if partition == place.partition else wanted.after_ms
            answer.remaining += await self._store.count_letters(
                partition, self._tenant, since_ms=since_ms, before_ms=place.before_ms
            )

    async def _sweep(
        self, wanted: Wanted, place: Place, act: Callable[[Sequence[str], Place], Awaitable[int]], limit: int
    ) -> Place | None:
        """Where the next request goes on; None: nowhere. `act` is given ids and the place that they are found from.

        It says how many of them count towards `limit`.
        """
        looks = MOST
        while place.partition < len(self._store.partitions):
            if looks == 0 or limit == 0:
                return place
            page = await self._store.page(
                place.partition,
                self._tenant,
                start=Mark(place.at_ms, place.id),
                limit=min(BATCH, looks, limit),
                letters=True,
                oldest_first=True,
                till_ms=place.before_ms,
                task_type=wanted.type,
                queue=wanted.queue,
                kind=wanted.kind,
            )
            looks -= page.scanned
            limit -= await act(page.ids, place) if page.ids else 0
            if page.last is not None:
                place = place._replace(at_ms=page.last.at_ms, id=page.last.id)
            else:
                place = place._replace(partition=place.partition + 1, at_ms=wanted.after_ms, id="")
        return None

    async def _redrive(
        self, ids: Sequence[str], answer: Redriven, before_ms: int, first_ms: int, rate_per_s: float
    ) -> int:
        outcomes = await self._store.redrive_letters(
            ids,
            request_id=self._request_id,
            limits=self._limits,
            tenant=self._tenant,
            before_ms=before_ms,
            first_ms=first_ms if rate_per_s else 0,
            rate_per_s=rate_per_s,
        )
        done = [task_id for task_id, refused in zip(ids, outcomes, strict=True) if refused is None]
        self.taken += done
        answer.redriven += len(done)
        for outcome in outcomes:
            _count(answer, outcome)
        return len(done)


def _count(answer: Redriven, outcome: TaskgateError | None) -> None:
    if isinstance(outcome, Refused):
        answer.refused += 1
        if answer.limit is None:
            answer.limit = outcome.limit
            answer.retry_after_s = retry_after_s(outcome)
    elif outcome is not None:
        answer.skipped += 1

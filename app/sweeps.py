"""Many dead letters at once: found from the oldest on, redriven or deleted batch by batch, so far in one request."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
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

LATEST_MS = 2**43
"""The year 2248: a row of starts may begin until then, so that a forged one is a date, too."""

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
    """When there may be room for these. With a filter: null while others are still to be tried; go on at once."""
    refused_ids: list[str] = msgspec.field(default_factory=list)
    """Those of `ids` that were refused."""
    next_start_at: datetime | None = None
    """With `ids` at a rate: the `start_at` of the next request, when both are to keep to it."""
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


class Again(NamedTuple):
    """Where what found no room begins, to be tried again once all the others were, and why it found none."""

    partition: int
    at_ms: Ms | None
    """With `id` the Mark there."""
    id: str
    limit: str
    retry_after_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)]


class Place(NamedTuple):
    """How far a sweep has come."""

    before_ms: Ms
    """Later ends are left out, so that nothing that fails again meanwhile is met twice."""
    next_ms: Annotated[int, msgspec.Meta(ge=0, le=LATEST_MS)]
    """When the next one starts, at a rate."""
    partition: int
    at_ms: Ms | None
    """With `id` the Mark there."""
    id: str = ""
    again: Again | None = None


async def place_of(store: Store, use: Use, wanted: Wanted, tenant: str, cursor: str | None) -> Place:
    """Where a sweep begins or, with a cursor, goes on. Raises Problem: it is not of this sweep."""
    now_ms = await store.now_ms()
    if cursor is None:
        before_ms = now_ms + 1 if wanted.before_ms is None else min(wanted.before_ms, now_ms + 1)
        return Place(before_ms, now_ms, 0, wanted.after_ms)
    place = unsealed(cursor, Place, use, wanted, tenant)
    if not {place.partition, place.again.partition if place.again else 0} <= set(store.partitions):
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
        answer, next_ms, again = Redriven(), place.next_ms, place.again

        async def act(ids: Sequence[str], where: Place) -> int:
            nonlocal next_ms, again
            skipped = answer.skipped
            count = await self._redrive(ids, answer, place.before_ms, next_ms, rate_per_s)
            next_ms += _takes_ms(count, rate_per_s)
            if again is None and answer.limit is not None:
                again = Again(where.partition, where.at_ms, where.id, answer.limit, answer.retry_after_s or 1)
            if again is not None:
                answer.skipped = skipped  # met again
            return count

        # Past what was refused, to the very end, over as many requests as that takes: other queues may have room.
        following = await self._sweep(wanted, place, act, limit)
        if following is not None:
            answer.retry_after_s = None
            following = following._replace(again=again)
        elif again is not None:
            answer.limit, answer.retry_after_s = again.limit, again.retry_after_s
            following = Place(place.before_ms, next_ms, again.partition, again.at_ms, again.id)
        if following is not None:
            await self._go_on(answer, "redrive", following._replace(next_ms=next_ms), wanted)
        return answer

    async def redrive_ids(self, ids: Sequence[str], *, start_ms: int, rate_per_s: float) -> Redriven:
        known = [task_id for task_id in dict.fromkeys(ids) if is_task_id(task_id)]
        answer, next_ms = Redriven(skipped=len(ids) - len(known)), max(start_ms, await self._store.now_ms())
        by_partition: dict[int, list[str]] = defaultdict(list)
        for task_id in known:
            by_partition[self._store.partition_of(task_id)].append(task_id)
        for together in by_partition.values():
            for first in range(0, len(together), BATCH):
                batch = together[first : first + BATCH]
                count = await self._redrive(batch, answer, 0, next_ms, rate_per_s, refused_ids=answer.refused_ids)
                next_ms += _takes_ms(count, rate_per_s)
        if rate_per_s:
            answer.next_start_at = datetime.fromtimestamp(next_ms / 1000, UTC)
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
        oldest = place.again or place
        for partition in self._store.partitions[oldest.partition :]:
            since_ms = oldest.at_ms if partition == oldest.partition else wanted.after_ms
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
        self,
        ids: Sequence[str],
        answer: Redriven,
        before_ms: int,
        first_ms: int,
        rate_per_s: float,
        *,
        refused_ids: list[str] | None = None,
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
        for task_id, outcome in zip(ids, outcomes, strict=True):
            _count(answer, outcome)
            if refused_ids is not None and isinstance(outcome, Refused):
                refused_ids.append(task_id)
        return len(done)


def _takes_ms(count: int, rate_per_s: float) -> int:
    return round(count * 1000 / rate_per_s) if rate_per_s else 0


def _count(answer: Redriven, outcome: TaskgateError | None) -> None:
    if isinstance(outcome, Refused):
        answer.refused += 1
        if answer.limit is None:
            answer.limit = outcome.limit
            answer.retry_after_s = retry_after_s(outcome)
    elif outcome is not None:
        answer.skipped += 1

"""Task state as this process last saw it: from memory while fresh, read together with others when not."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from cachetools import LRUCache

from app.errors import Problem
from app.estimates import WAITS_FOR_ROOM, Estimates
from app.reply import JSON, Headers, length
from app.shared import shared
from app.view import Estimate, poll_after_ms, task_json
from taskgate.contract import ids, keys
from taskgate.contract.errors import TaskNotFound
from taskgate.contract.group import Group
from taskgate.contract.models import TaskRecord
from taskgate.contract.reading import result_of
from taskgate.contract.states import FINAL, Health, Status
from taskgate.contract.store import Store

CACHE_BYTES = 64 * 1024**2
_ENTRY_BYTES = 3_000
"""What an entry costs besides its body: record, headers, the cache's own."""

FINAL_TTL_S = 10.0
_RESULTS_A_READ = 16
"""Each may be as large as results can be."""

_VARY = (b"vary", b"Authorization, Accept-Encoding, Prefer")
_LIVE = (b"cache-control", b"private, no-cache")
_FINAL = (b"cache-control", b"private, max-age=60")


class Snapshot:
    """A task as it was read, with the answer ready to send."""

    __slots__ = ("body", "etag", "fresh_until", "headers", "not_modified", "record")

    def __init__(self, record: TaskRecord, fresh_until: float, estimate: Estimate | None = None) -> None:
        self.record = record
        self.fresh_until = fresh_until
        self.body = task_json(record, estimate)
        self.etag = b'W/"%d%s"' % (record.version, decided_at_the_read(record))
        caching: Headers = [(b"etag", self.etag), _FINAL if _is_settled(record) else _LIVE, _VARY]
        poll_ms = poll_after_ms(record)
        if poll_ms is not None:
            caching.append((b"retry-after", b"%d" % -(-poll_ms // 1000)))
        self.not_modified = caching
        self.headers: Headers = [JSON, length(self.body), *caching]

    def has_ended(self) -> bool:
        return self.record.status in FINAL


def _is_settled(record: TaskRecord) -> bool:
    """A failed task may be redriven: of the final states, the only one that is not for ever."""
    return record.status in FINAL and record.status is not Status.FAILED


def decided_at_the_read(record: TaskRecord) -> bytes:
    """What changes without a version, in short; nothing for the usual. Ages, positions and estimates are left out."""
    if record.seen_health() == Health.LOST:
        return b"-lost"
    if record.status is Status.QUEUED and (stage := record.seen_stage() or "") != WAITS_FOR_ROOM:
        return b"-%s" % "".join(word[:2] for word in stage.split()).replace("'", "").encode()
    return b""


class Snapshots:
    """Reads of task state for this process: cached, one flight per task, grouped into single calls."""

    def __init__(self, store: Store, estimates: Estimates, *, ttl_s: float, retention_s: float) -> None:
        self._ttl_s = ttl_s
        self._retention_s = retention_s
        self._cache: LRUCache[str, Snapshot] = LRUCache(
            CACHE_BYTES, getsizeof=lambda snapshot: len(snapshot.body) + _ENTRY_BYTES
        )
        self._flights: dict[str, asyncio.Task[Snapshot | None]] = {}
        self._groups = [Group(_reader(store)) for _ in store.partitions]
        self._results = [Group(_reader(store, result=True), max_items=_RESULTS_A_READ) for _ in store.partitions]
        self._store = store
        self._estimates = estimates
        self._called_at = float("-inf")
        self.reads = {"hit": 0, "miss": 0}
        """Of `get`: answered from memory, or not."""

    async def get(self, task_id: str, tenant: str) -> Snapshot:
        """As of at most the cache's age ago.

        Raises:
            TaskNotFound: no such task of that tenant.
            Problem: `gone`: it existed longer ago than finished tasks are kept.
        """
        snapshot = self._cache.get(task_id)
        if snapshot is None or snapshot.fresh_until < time.monotonic():
            self.reads["miss"] += 1
            snapshot = await self._fly(known_id(task_id))
        else:
            self.reads["hit"] += 1
        return self._owned(task_id, snapshot, tenant)

    async def fresh(self, task_id: str, tenant: str) -> Snapshot:
        """As of now or later: the read starts after this call."""
        return self._owned(task_id, await self._read(known_id(task_id)), tenant)

    async def result(self, task_id: str) -> tuple[Status, bytes]:
        """How it ended, and its result. Many are read together: with a connection for each, a crowd would use up the
        pool, and for those behind it Redis would not answer. Raises as `result_of`.
        """
        return result_of(task_id, await self._results[self._store.partition_of(task_id)](task_id))

    async def several(self, task_ids: Sequence[str]) -> list[Snapshot]:
        """As of now, in that order, whosever they are; without those that are purged."""
        read = await asyncio.gather(*map(self._read, task_ids))
        return [one for one in read if one is not None]

    async def forget(self, task_id: str) -> None:
        """Of a task that was deleted: also what reads that were under way then bring, since reads keep their order."""
        await self._read(task_id)

    def drop(self, task_id: str) -> None:
        """Of a task that was deleted, as another gateway's request."""
        self._cache.pop(task_id, None)

    async def json(self, record: TaskRecord) -> bytes:
        """The task as clients see it, of a record that was read otherwise."""
        return task_json(*await self._estimates.of(record))

    def _owned(self, task_id: str, snapshot: Snapshot | None, tenant: str) -> Snapshot:
        if snapshot is not None and snapshot.record.spec.tenant == tenant:
            return snapshot
        if snapshot is None and time.time() - ids.made_at_ms(task_id) / 1000 > self._retention_s:
            raise Problem("gone")
        raise TaskNotFound(task_id)

    async def _fly(self, task_id: str) -> Snapshot | None:
        joined = self._flights.get(task_id)
        if joined is not None:
            found = await asyncio.shield(joined)
            # It may have looked before the task was there, and this caller may have seen the 202 in between.
            return found if found is not None else await self._read(task_id)
        flight = self._flights[task_id] = shared(self._read(task_id))
        flight.add_done_callback(lambda _: self._flights.pop(task_id, None))
        return await asyncio.shield(flight)  # who hangs up does not end the read of the others

    async def _read(self, task_id: str) -> Snapshot | None:
        started = time.monotonic()
        record = await self._groups[self._store.partition_of(task_id)](task_id)
        if record is None:
            self._cache.pop(task_id, None)
            return None
        if record.seen_health() == Health.LOST:
            self._call_for_a_look(task_id)
        record, estimate = await self._estimates.of(record)
        known = self._cache.get(task_id)
        if known is not None and known.record.version > record.version:
            return known  # an earlier read that was overtaken: a status never goes back
        ttl_s = max(FINAL_TTL_S, self._ttl_s) if _is_settled(record) else self._ttl_s
        snapshot = Snapshot(record, started + ttl_s, estimate)
        self._cache[task_id] = snapshot
        return snapshot

    def _call_for_a_look(self, task_id: str) -> None:
        """Tell the supervisors that a task seems lost; they decide. At most once a second, however many ask."""
        now = time.monotonic()
        if now - self._called_at < 1:
            return
        self._called_at = now
        channel = keys.notices(self._store.partition_of(task_id))
        self._call = shared(self._store.notify(channel, "look"))


def known_id(text: str) -> str:
    """Raises TaskNotFound: it is no task's, and has no partition where it could be looked for."""
    if not ids.is_task_id(text):
        raise TaskNotFound(text)
    return text


def _reader(store: Store, *, result: bool = False) -> Callable[[Sequence[str]], Awaitable[Sequence[TaskRecord | None]]]:
    async def read(task_ids: Sequence[str]) -> Sequence[TaskRecord | None]:
        unique = list(dict.fromkeys(task_ids))
        found = dict(zip(unique, await store.read(unique, result=result), strict=True))
        return [found[task_id] for task_id in task_ids]

    return read

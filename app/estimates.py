"""Estimates, marked as such: when a task starts, how long it still runs; from its progress, past runs or its queue."""

import asyncio
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import msgspec
from cachetools import LRUCache

from app.shared import shared
from app.view import Estimate, stored_progress
from taskgate.contract.errors import TaskgateError
from taskgate.contract.limits import MAX_TIMEOUT_S
from taskgate.contract.models import WAITS_FOR_A_LIMIT, WAITS_FOR_A_WORKER, Pace, TaskRecord, WorkerInfo
from taskgate.contract.shares import OTHERS
from taskgate.contract.states import Health, Status
from taskgate.contract.store import Store
from taskgate.policy import Policy

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_STANDS_STILL = (Health.LOST, Health.PAUSED)
"""Of a task that does not run, the time left does not become less."""

RENEW_S, OLD_S = 2.0, 10.0
"""What is known is read again after the one time, and no longer used after the other."""

WAITS_FOR_ROOM = "waiting for room to run"


_NAMES = 128
"""Tenants whose weights are looked up; more than these weigh as others do."""


class Turns(NamedTuple):
    """What a policy makes of a queued task's turn."""

    share: float | None = None
    """Of its tenant, in what of its type is taken next; None: as every other tenant's."""
    most: int | None = None
    """So many of its tenant's tasks run at a time, whatever their type; None: any number."""
    most_of_type: int | None = None


_EQUAL = Turns()


class Estimates:
    """What this process knows of queues and supervisors, a few seconds old: tasks cost no read of their own.

    `limit_of`: how many of a type may run at a time, as far as that is known.
    """

    def __init__(
        self, store: Store, policy: Policy | None = None, *, limit_of: Callable[[str], int | None] = lambda _: None
    ) -> None:
        self._store = store
        self._policy = policy or Policy()
        self._limit_of = limit_of
        names = _NAMES if self._policy.weighs else 0
        self._paces: _Known[tuple[int, str, str], Pace] = _Known(lambda key: store.pace(*key, names=names))
        self._workers: _Known[None, list[WorkerInfo]] = _Known(lambda _: store.workers())

    async def of(self, record: TaskRecord) -> tuple[TaskRecord, Estimate | None]:
        """The record, saying what it waits for where it is queued; and None where nothing is known, or to estimate."""
        if record.status is Status.RUNNING:
            return record, await self._left(record)
        if record.status is Status.QUEUED and (workers := await self._workers(None)) is not None:
            staged = msgspec.structs.replace(record, stage=waits_for(record, workers))
            return staged, await self._start(record, workers)
        return record, None

    async def _left(self, record: TaskRecord) -> Estimate | None:
        if record.seen_health() in _STANDS_STILL:
            return None
        left_ms = left_by_progress_ms(record)
        if left_ms is not None:
            return Estimate(remaining_ms=left_ms, basis="progress")
        left_ms = left_by_runs_ms(record, typical_ms(record, await self._workers(None)))
        return None if left_ms is None else Estimate(remaining_ms=left_ms, basis="past_runs")

    async def _start(self, record: TaskRecord, workers: list[WorkerInfo]) -> Estimate | None:
        if record.position is None:
            return None
        pace = await self._paces((self._store.partition_of(record.id), record.spec.queue, record.spec.type))
        return None if pace is None else start(record, pace, workers, self._turns(record, pace))

    def _turns(self, record: TaskRecord, pace: Pace) -> Turns:
        said, share = self._policy.tenant(record.spec.tenant), None
        if pace.names:
            others = set(pace.names) - {record.spec.tenant}
            weights = said.weight + sum(self._policy.tenant(each).weight for each in others)
            weights += max(0, pace.tenants - len(pace.names)) * self._policy.tenant(OTHERS).weight
            share = said.weight / weights
        return Turns(share, said.concurrency, self._limit_of(record.spec.type))


class _Known(Generic[K, V]):
    """Answers from memory; renewed behind it, and only waited for when there is nothing, or too old a thing."""

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        self._read = read
        self._values: LRUCache[K, tuple[float, V]] = LRUCache(1024)
        self._reading: dict[K, asyncio.Task[V | None]] = {}
        self._tried: LRUCache[K, float] = LRUCache(1024)

    async def __call__(self, key: K) -> V | None:
        now = time.monotonic()
        at, value = self._values.get(key, (float("-inf"), None))
        if now - at > RENEW_S:
            reading = self._renew(key, now)
            if now - at > OLD_S:
                return None if reading is None else await asyncio.shield(reading)
        return value

    def _renew(self, key: K, now: float) -> asyncio.Task[V | None] | None:
        """The read under way; None where one has just failed."""
        reading = self._reading.get(key)
        if reading is None and now - self._tried.get(key, float("-inf")) > RENEW_S:
            self._tried[key] = now
            reading = self._reading[key] = shared(self._keep(key, now))
        return reading

    async def _keep(self, key: K, now: float) -> V | None:
        try:
            value = await self._read(key)
        except TaskgateError:
            return None  # Redis is away: there is no estimate, and that is all
        finally:
            del self._reading[key]
        self._values[key] = now, value
        return value


def left_by_progress_ms(record: TaskRecord) -> int | None:
    """At the pace of this attempt so far.

    None: it tells no part of a whole, has done nothing of it yet or in no time, or would take longer than attempts may.
    """
    progress = stored_progress(record)
    if progress is None or progress.current is None or not progress.total:
        return None
    began, began_ms = progress.base or 0, progress.base_ms or record.started_ms
    done = progress.current - began
    if done <= 0:
        return None
    left = max(0.0, (progress.total - progress.current) / done)
    told_ms = min(record.now_ms, progress.at_ms or record.now_ms)
    # Once the next step is overdue, its delay belongs to the pace.
    ahead_ms = (told_ms - began_ms) * left - (record.now_ms - told_ms)
    if left and ahead_ms <= 0:
        ahead_ms = (record.now_ms - began_ms) * left
        if ahead_ms <= 0:
            return None  # within its first millisecond nothing has a pace
    # Numbers out of all proportion would make it infinite, or none at all.
    return max(0, round(ahead_ms)) if ahead_ms <= MAX_TIMEOUT_S * 1000 else None


def left_by_runs_ms(record: TaskRecord, usual_ms: float | None) -> int | None:
    """None: no run is known, or this one takes longer than they did."""
    ran_ms = record.now_ms - record.started_ms
    return None if usual_ms is None or ran_ms >= usual_ms else round(usual_ms - ran_ms)


def typical_ms(record: TaskRecord, workers: list[WorkerInfo] | None) -> float | None:
    """What runs of its type took, by all supervisors that have seen some."""
    said = [worker.run_ms[record.spec.type] for worker in workers or () if record.spec.type in worker.run_ms]
    return statistics.fmean(said) if said else None


def start(record: TaskRecord, pace: Pace, workers: list[WorkerInfo], turns: Turns = _EQUAL) -> Estimate | None:
    """By what leaves its queue, or by what its supervisors can run at a time; None where nobody serves it, and where a
    limit keeps it of which nobody knows how long.
    """
    serving = [each for each in workers if _serves(each, record)]
    if not serving:
        return None
    own = (record.position or 0) + 1
    # Lanes and tenants take turns, so others go ahead; but no more than there are.
    per_turn = max(1, pace.tenants) if turns.share is None else 1 / turns.share
    ahead = max(own, min(own * max(1, pace.lanes) * per_turn, pace.waiting))
    usual_ms = typical_ms(record, workers)
    found = _at_its_pace(record, pace, serving, usual_ms, ahead)
    if turns.most is None and turns.most_of_type is None:
        return found
    if usual_ms is None:
        return None if record.barred else found
    # Of these, no more than the limit run at a time, however fast the queue is.
    floor_ms = max(own / (turns.most or math.inf), own * per_turn / (turns.most_of_type or math.inf)) * usual_ms
    if (record.barred and found is None) or (found is not None and floor_ms > (found.starts_in_ms or 0)):
        return Estimate(starts_in_ms=round(floor_ms), basis="past_runs")
    return found


def _at_its_pace(
    record: TaskRecord, pace: Pace, serving: list[WorkerInfo], usual_ms: float | None, ahead: float
) -> Estimate | None:
    by_runs, by_rate = None, None
    slots = sum(each.slots.get(record.spec.type, 0) for each in serving)
    if usual_ms is not None and slots:
        by_runs = Estimate(starts_in_ms=round(ahead * usual_ms / slots), basis="past_runs")
    rate = pace.leaving_per_s()
    if rate is not None:
        by_rate = Estimate(starts_in_ms=round(ahead * 1000 / rate), basis="drain_rate")
    if by_runs is None or by_rate is None:
        return by_rate or by_runs
    # A rate remembers a pause that is over. Where nothing else runs, no start is later than the runs before it last.
    alone = pace.lanes <= 1 and all(each.queues == [record.spec.queue] for each in serving)
    return min(by_rate, by_runs, key=lambda each: each.starts_in_ms or 0) if alone else by_rate


def waits_for(record: TaskRecord, workers: list[WorkerInfo]) -> str:
    """The stage of a queued task."""
    serving = [each for each in workers if _serves(each, record)]
    if not serving:
        return WAITS_FOR_A_WORKER
    if record.barred:
        return WAITS_FOR_A_LIMIT[record.barred]
    ready = sum(child["state"] != "starting" for each in serving for child in each.children)
    if ready < sum(each.wanted_children for each in serving):
        return "starting a child"
    return WAITS_FOR_ROOM


def _serves(worker: WorkerInfo, record: TaskRecord) -> bool:
    spec = record.spec
    alive = record.now_ms - worker.beat_ms < worker.lease_ms + int(OLD_S * 1000)  # what is known of it is that old
    names = (name.partition(":")[0] for name in worker.types)
    return alive and spec.queue in worker.queues and spec.type in names

"""What this process knows of all queues: read as a whole and shared, young, with the partitions added up."""

import asyncio
import heapq
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from cachetools import TLRUCache

from app.shared import shared
from app.types import TypeRegistry
from taskgate.contract.models import Pace, QueueLook, TypeInfo
from taskgate.contract.script import BATCH
from taskgate.contract.shares import OTHERS
from taskgate.contract.store import Store
from taskgate.policy import Policy

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

FRESH_S = 1.0
REST = 10
"""A reading is good for FRESH_S, or for so many times as long as it took: what is dear is asked for seldom,"""
OLDEST_S = 30.0
"""but for no longer than this."""
SOUGHT = 100
"""Tenants of whom most waits are looked for in every queue, also where they are at their limit;"""
LOOKED_AT = 500
"""beside them so many, over all queues."""
A_CALL = 8
"""Queues that one call of the script looks at, which holds Redis up for all."""
A_TURN = 1000
"""Counters that are gone through before others have their turn."""


class Look(NamedTuple):
    """Everything as it was read."""

    now_ms: int
    usages: Sequence[Mapping[str, float]]
    """By partition."""
    names: Sequence[str]
    """Those with most waiting first."""
    beyond: int
    """Queues that were not looked at: clients name them as they like."""
    found: Mapping[str, QueueLook]
    types: Mapping[str, Mapping[str, TypeInfo]]
    """What is published for each queue."""
    operated: frozenset[str]
    """Queues that the policy or a supervisor names: they are all looked at."""
    known: Set[str]
    """These, and all that have counters."""

    def count(self, what: str) -> int:
        """One of the counters."""
        return int(sum(usage.get(what, 0) for usage in self.usages))

    def rate(self, name: str) -> float | None:
        """What leaves a second: of a queue, or of `tenant:<name>`; None where nothing was measured."""
        rates = [_pace(usage, name, self.now_ms).leaving_per_s() for usage in self.usages]
        return sum(rate for rate in rates if rate is not None) if any(rate is not None for rate in rates) else None


class Looks:
    """Who comes while a reading is young, or under way, shares it."""

    def __init__(self, store: Store, types: TypeRegistry, policy: Policy) -> None:
        self._store = store
        self._types = types
        self._policy = policy
        self._whole = _Young[None, Look](self._read)
        self._own = _Young[_Asked, dict[str, QueueLook]](self._busy)
        self._left_out = _Young[_Asked, dict[str, QueueLook]](self._at)
        self._turn = asyncio.Lock()

    async def fresh(self) -> Look:
        return await self._whole(None)

    async def of(self, tenant: str, look: Look) -> Mapping[str, QueueLook]:
        """What stands ready of that tenant in the queues of a look, where anything does."""
        if not look.count(f"waiting:tenant:{tenant}"):
            return {}
        return await self._own(_Asked(tuple(sorted(look.names)), (tenant,)))

    async def one(self, queue: str) -> Mapping[str, QueueLook]:
        """A queue that a look at all has left out."""
        return await self._left_out(_Asked((queue,), limit=SOUGHT))

    async def _busy(self, asked: "_Asked") -> dict[str, QueueLook]:
        return {name: found for name, found in (await self._at(asked)).items() if found.ready}

    async def _at(self, asked: "_Asked") -> dict[str, QueueLook]:
        """One call at a time: callers of others come between, also in Redis."""
        found: dict[str, QueueLook] = {}
        for n in range(0, len(asked.names), A_CALL):
            names = asked.names[n : n + A_CALL]
            limit = math.ceil(asked.limit * len(names) / len(asked.names))
            for_each = []
            for partition in self._store.partitions:
                async with self._turn:
                    for_each.append((await self._store.queues(partition, names, sought=asked.sought, limit=limit))[1])
            found |= {name: _together([each[name] for each in for_each]) for name in names}
        return found

    async def _read(self, _: None) -> Look:
        usages = [await self._store.usage(each) for each in self._store.partitions]
        named, waiting = await _gathered(usages)
        operated = {
            name for worker in await self._store.workers() for name in worker.queues
        } | self._policy.queues.keys()
        operated.discard(OTHERS)
        waits = [usage.get for usage in usages]

        def order(name: str) -> tuple[float, str]:
            return -sum(get(f"waiting:queue:{name}", 0) for get in waits), name

        others = await _first(max(0, BATCH - len(operated)), named - operated, order)
        names = sorted([*operated, *others], key=order)
        named |= operated
        sought = await _first(SOUGHT, waiting, lambda tenant: (-waiting[tenant], tenant))
        types: dict[str, dict[str, TypeInfo]] = {}
        for variant in reversed(await self._types.listed()):  # what is served now wins
            types.setdefault(variant.info.queue, {})[variant.info.type] = variant.info
        return Look(
            now_ms=await self._store.now_ms(),
            usages=usages,
            names=names,
            beyond=len(named) - len(names),
            found=await self._at(_Asked(tuple(names), tuple(sought), LOOKED_AT)),
            types=types,
            operated=frozenset(operated),
            known=named,
        )


class _Asked(NamedTuple):
    """As Store.queues has it."""

    names: tuple[str, ...]
    sought: tuple[str, ...] = ()
    limit: int = 0


class _Young(Generic[K, V]):
    """Readings by key, dated from their end: one that takes long would never be young otherwise."""

    def __init__(self, read: Callable[[K], Coroutine[Any, Any, V]]) -> None:
        self._read = read
        self._values: TLRUCache[K, tuple[float, V]] = TLRUCache(
            1024, lambda _, value, now: now + value[0], time.monotonic
        )
        self._reading: dict[K, asyncio.Task[V]] = {}

    async def __call__(self, key: K) -> V:
        known = self._values.get(key)
        if known is not None:
            return known[1]
        if key not in self._reading:
            self._reading[key] = shared(self._keep(key))
        return await asyncio.shield(self._reading[key])

    async def _keep(self, key: K) -> V:
        began = time.monotonic()
        try:
            value = await self._read(key)
        finally:
            del self._reading[key]
        self._values[key] = max(FRESH_S, min(OLDEST_S, REST * (time.monotonic() - began))), value
        return value


async def _by_turns(items: Iterable[T]) -> AsyncIterator[list[T]]:
    """In parts, between which others have their turn: there may be a great many tenants."""
    rest = iter(items)
    while part := list(islice(rest, A_TURN)):
        yield part
        await asyncio.sleep(0)


async def _gathered(usages: Sequence[Mapping[str, float]]) -> tuple[set[str], dict[str, float]]:
    """Queues that have counters, and what waits of each tenant."""
    queues, waiting = set(), dict[str, float]()
    for usage in usages:
        async for part in _by_turns(usage.items()):
            for field, value in part:
                what, _, whose = field.partition(":")
                kind, has_name, name = whose.partition(":")
                if kind == "queue" and has_name:
                    queues.add(name)
                elif what == "drain_at" and not has_name:
                    queues.add(whose)
                elif what == "waiting" and kind == "tenant":
                    waiting[name] = waiting.get(name, 0) + value
    return queues, waiting


async def _first(count: int, names: Iterable[str], order: Callable[[str], tuple[float, str]]) -> list[str]:
    first: list[str] = []
    async for part in _by_turns(names):
        first = heapq.nsmallest(count, first + part, key=order)
    return first


def _pace(usage: Mapping[str, float], name: str, now_ms: int) -> Pace:
    """How fast that moves in a partition; what waits there is not asked."""
    since = usage.get(f"drain_at:{name}")
    left = int(usage.get(f"drain_n:{name}", 0))
    return Pace(now_ms, None if since is None else int(since), left, usage.get(f"drain_rate:{name}"), 0, 0, 0)


def _together(parts: Sequence[QueueLook]) -> QueueLook:
    """One queue in all partitions, each of which may have some tasks of every tenant."""
    if len(parts) == 1:
        return parts[0]
    lanes = {lane for part in parts for lane in part.beyond}
    return QueueLook(
        dead=sum(part.dead for part in parts),
        oldest_ms=min((part.oldest_ms for part in parts if part.oldest_ms is not None), default=None),
        oldest_sure=all(part.oldest_sure for part in parts),
        beyond={lane: max(part.beyond.get(lane, 0) for part in parts) for lane in lanes},
        ready=[each for part in parts for each in part.ready],
    )

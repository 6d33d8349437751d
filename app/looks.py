"""What this process knows of all queues: read as a whole, at most a second old, the partitions added up."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cachetools import LRUCache

from app.shared import shared
from app.types import TypeRegistry
from taskgate.contract.models import Pace, QueueLook, TypeInfo
from taskgate.contract.script import BATCH
from taskgate.contract.store import Store
from taskgate.policy import OTHERS, Policy

FRESH_S = 1.0
SOUGHT = 100
"""Tenants of whom most waits are looked for in every queue, also where they are at their limit;"""
LOOKED_AT = 500
"""beside them so many, over all queues."""


class Look(NamedTuple):
    """Everything as it was read."""

    now_ms: int
    usage: Mapping[str, float]
    rates: Mapping[str, float]
    """What leaves a second, by queue, and by `tenant:<name>`; missing where nothing was measured."""
    names: Sequence[str]
    """Those with most waiting first."""
    beyond: int
    """Queues that were not looked at: clients name them as they like."""
    found: Mapping[str, QueueLook]
    types: Mapping[str, Mapping[str, TypeInfo]]
    """What is published for each queue."""
    operated: frozenset[str]
    """Queues that the policy or a supervisor names."""

    def count(self, what: str) -> int:
        """One of the counters in `usage`."""
        return int(self.usage.get(what, 0))


class Looks:
    """Who comes while a look is young, or under way, shares it."""

    def __init__(self, store: Store, types: TypeRegistry, policy: Policy) -> None:
        self._store = store
        self._types = types
        self._policy = policy
        self._young: tuple[float, Look] | None = None
        self._looking: asyncio.Task[Look] | None = None
        self._own: LRUCache[str, tuple[float, dict[str, QueueLook] | None]] = LRUCache(1024)

    async def fresh(self) -> Look:
        if self._young is not None and time.monotonic() - self._young[0] < FRESH_S:
            return self._young[1]
        if self._looking is None:
            self._looking = shared(self._read())
            self._looking.add_done_callback(self._done)
        return await asyncio.shield(self._looking)

    def _done(self, _: asyncio.Task[Look]) -> None:
        self._looking = None

    async def of(self, tenant: str, look: Look) -> dict[str, QueueLook]:
        """What that tenant has in the queues of a look; at no other is looked."""
        at, found = self._own.get(tenant, (float("-inf"), None))
        if found is None or time.monotonic() - at >= FRESH_S or not found.keys() >= set(look.names):
            at, found = time.monotonic(), await self._at(look.names, [tenant])
            self._own[tenant] = at, found
        return found

    async def one(self, queue: str, tenant: str) -> dict[str, QueueLook]:
        """A queue that a look at all has left out."""
        return await self._at([queue], [tenant], limit=SOUGHT)

    async def _at(self, names: Sequence[str], sought: Sequence[str], *, limit: int = 0) -> dict[str, QueueLook]:
        """These queues, looking for these tenants, and at up to about `limit` others."""
        looks = [await self._store.queues(each, names, sought=sought, limit=limit) for each in self._store.partitions]
        return {name: _together([found[name] for _, found in looks]) for name in names}

    async def _read(self) -> Look:
        began = time.monotonic()
        usages = [await self._store.usage(each) for each in self._store.partitions]
        usage: dict[str, float] = {}
        for each in usages:
            for field, value in each.items():
                usage[field] = usage.get(field, 0) + value
        waiting = {field.removeprefix("waiting:tenant:"): usage[field] for field in usage if "waiting:tenant:" in field}
        operated = {
            name for worker in await self._store.workers() for name in worker.queues
        } | self._policy.queues.keys()
        operated.discard(OTHERS)
        used = {field.partition(":queue:")[2] for field in usage if ":queue:" in field}
        drained = {name for field in usage if ":" not in (name := field.removeprefix("drain_at:"))}
        order = sorted(used | drained | operated, key=lambda name: (-usage.get(f"waiting:queue:{name}", 0), name))
        names = order[:BATCH]
        sought = sorted(waiting, key=lambda tenant: -waiting[tenant])[:SOUGHT]
        now_ms = await self._store.now_ms()
        types: dict[str, dict[str, TypeInfo]] = {}
        for variant in reversed(await self._types.listed()):  # what is served now wins
            types.setdefault(variant.info.queue, {})[variant.info.type] = variant.info
        look = Look(
            now_ms=now_ms,
            usage=usage,
            rates=_rates(usages, now_ms),
            names=names,
            beyond=len(order) - len(names),
            found=await self._at(names, sought, limit=LOOKED_AT),
            types=types,
            operated=frozenset(operated),
        )
        self._young = began, look
        return look


def _rates(usages: Sequence[Mapping[str, float]], now_ms: int) -> dict[str, float]:
    rates: dict[str, float] = {}
    for usage in usages:
        for name in [field.removeprefix("drain_at:") for field in usage if field.startswith("drain_at:")]:
            left = int(usage.get(f"drain_n:{name}", 0))
            pace = Pace(now_ms, int(usage[f"drain_at:{name}"]), left, usage.get(f"drain_rate:{name}"), 0, 0, 0)
            rate = pace.leaving_per_s()
            if rate is not None:
                rates[name] = rates.get(name, 0) + rate
    return rates


def _together(parts: Sequence[QueueLook]) -> QueueLook:
    """One queue in all partitions, each of which may have some tasks of every tenant."""
    lanes = {lane for part in parts for lane in part.beyond}
    return QueueLook(
        dead=sum(part.dead for part in parts),
        oldest_ms=min((part.oldest_ms for part in parts if part.oldest_ms is not None), default=None),
        beyond={lane: max(part.beyond.get(lane, 0) for part in parts) for lane in lanes},
        ready=[each for part in parts for each in part.ready],
    )

"""`GET /queues`: what waits, runs and died, how fast it moves, within which limits and shares."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from app.looks import Look, Looks
from app.types import TypeRegistry
from taskgate.contract.ids import is_name
from taskgate.contract.models import QueueLimits, QueueLook, TenantLimits, TypeInfo
from taskgate.contract.shares import OTHERS
from taskgate.contract.store import Store
from taskgate.settings import Settings

TENANTS_SHOWN = 20
_NOTHING = QueueLook(dead=0, oldest_ms=None, oldest_sure=True, beyond={}, ready=[])


class LimitView(msgspec.Struct, kw_only=True):
    """What is allowed to wait, in tasks, bytes or seconds, and what does; null: not known."""

    limit: str
    max: float
    used: float | None


class ShareView(msgspec.Struct, kw_only=True):
    """A tenant in a queue. `ready` is there; `waiting` and `running` are over all queues, as its limits count."""

    tenant: str
    ready: int
    weight: float
    share: float
    """Of what runs next, while all who are ready now stay so."""
    waiting: int
    running: int
    concurrency: int | None


class TypeView(msgspec.Struct, kw_only=True):
    """A task type in a queue; `running` is over all queues, as its limit counts."""

    type: str
    ready: int
    running: int | None
    concurrency: int | None


class QueueView(msgspec.Struct, kw_only=True):
    """A queue, all tenants together but for `tenants`."""

    queue: str
    waiting: int
    """queued, scheduled and retrying: what the limits count."""
    queued: int
    scheduled: int
    retrying: int
    running: int
    dead: int
    bytes: int
    oldest_age_ms: int | None
    """Since creation, of the oldest queued task; null: none was found."""
    oldest_age_at_least: bool
    """There may be an older one: kept back by a concurrency key, or among too many to look at each."""
    drain_per_s: float | None
    estimated_wait_ms: int | None
    on_full: str
    limits: list[LimitView]
    tenants: list[ShareView]
    more_tenants: int
    types: list[TypeView]


class TenantView(msgspec.Struct, kw_only=True):
    """Who asks, over all queues."""

    tenant: str
    waiting: int
    bytes: int
    running: int
    weight: float
    concurrency: int | None
    rate_per_s: float | None
    burst: int | None
    limits: list[LimitView]


class QueuesView(msgspec.Struct, kw_only=True):
    """The answer: those with most waiting first; all that the policy or a supervisor names."""

    items: list[QueueView]
    more_queues: int
    tenant: TenantView


class _Depth(NamedTuple):
    """What there is of a queue, or of a tenant."""

    waiting: int
    queued: int
    scheduled: int
    retrying: int
    running: int
    bytes: int
    drain_per_s: float | None
    wait_s: float | None
    """How long what is queued takes to leave at that rate, as admission reckons."""

    @classmethod
    def of(cls, kind: str, name: str, look: Look) -> "_Depth":
        """`kind`: `queue` or `tenant`."""
        counted = ("waiting", "scheduled", "retrying", "running", "bytes")
        waiting, scheduled, retrying, running, size = (look.count(f"{what}:{kind}:{name}") for what in counted)
        queued = max(0, waiting - scheduled - retrying)
        rate = look.rate(name if kind == "queue" else f"tenant:{name}")
        wait_s = queued / rate if rate else None if queued else 0.0
        return cls(waiting, queued, scheduled, retrying, running, size, rate, wait_s)


class Queues:
    """What a tenant may see of the queues: where several share the service, no other's name, and of the queues that
    clients have named only those where tasks of its own stand ready.
    """

    def __init__(self, store: Store, types: TypeRegistry, settings: Settings) -> None:
        self._looks = Looks(store, types, settings.policy)
        self._limits = settings.limits
        self._policy = settings.policy

    async def view(self, tenant: str, queue: str | None = None, *, apart: bool) -> QueuesView:
        """`queue`: only that one. `apart`: others have no part in what it sees."""
        look = await self._looks.fresh()
        if queue is not None:
            look = await self._only(queue, look)
        found = await self._looks.of(tenant, look) if apart else look.found
        names = [name for name in look.names if not apart or name in look.operated or name in found]
        items = []
        for name in names:
            items.append(self._queue(name, look, found.get(name, _NOTHING)))
            await asyncio.sleep(0)  # many queues of many types would hold others up
        return QueuesView(
            items=items,
            more_queues=0 if apart else look.beyond,
            tenant=self._tenant(tenant, look),
        )

    async def all(self) -> tuple[list[QueueView], frozenset[str]]:
        """All that are looked at, whoever asks; and those that an operator has named, by policy, supervisor or type."""
        look = await self._looks.fresh()
        return [self._queue(name, look, look.found[name]) for name in look.names], look.operated | look.types.keys()

    async def _only(self, queue: str, look: Look) -> Look:
        """Also where it is one of those that were not looked at; empty where there is no such queue."""
        found = dict(look.found)
        if queue not in found and is_name(queue):
            one = await self._looks.one(queue)
            if queue in look.known or one[queue] != _NOTHING:
                found |= one
        return look._replace(names=[queue] if queue in found else [], beyond=0, found=found)

    def _queue(self, name: str, look: Look, found: QueueLook) -> QueueView:
        depth, whole, policy = _Depth.of("queue", name, look), look.found[name], self._policy.queue(name)
        limits = _limits("queue", self._limits.of_queue(name), depth)
        if policy.on_full == "spill":
            limits += [
                LimitView(limit="spill-tasks", max=policy.spill_tasks, used=look.count(f"spilled:queue:{name}")),
                LimitView(
                    limit="spill-bytes", max=int(policy.spill_bytes), used=look.count(f"spilled_bytes:queue:{name}")
                ),
            ]
        return QueueView(
            queue=name,
            waiting=depth.waiting,
            queued=depth.queued,
            scheduled=depth.scheduled,
            retrying=depth.retrying,
            running=depth.running,
            dead=whole.dead,
            bytes=depth.bytes,
            oldest_age_ms=None if whole.oldest_ms is None else max(0, look.now_ms - whole.oldest_ms),
            oldest_age_at_least=not whole.oldest_sure,
            drain_per_s=None if depth.drain_per_s is None else round(depth.drain_per_s, 3),
            estimated_wait_ms=None if depth.wait_s is None else round(depth.wait_s * 1000),
            on_full=policy.on_full,
            limits=limits,
            tenants=self._shares(found, whole, look),
            more_tenants=_beyond(whole) + len(_ready(whole)) - min(TENANTS_SHOWN, len(_ready(found))),
            types=_types(whole, look.types.get(name, {}), look),
        )

    def _shares(self, found: QueueLook, whole: QueueLook, look: Look) -> list[ShareView]:
        """Of `found`, in the `whole`: tenants who were not looked at count as unnamed ones."""
        weights = sum(self._policy.tenant(each).weight for each in _ready(whole))
        weights += _beyond(whole) * self._policy.tenant(OTHERS).weight
        views = []
        for tenant, ready in _ready(found).most_common(TENANTS_SHOWN):
            policy, depth = self._policy.tenant(tenant), _Depth.of("tenant", tenant, look)
            views.append(
                ShareView(
                    tenant=tenant,
                    ready=ready,
                    weight=policy.weight,
                    share=round(policy.weight / max(weights, policy.weight), 4),
                    waiting=depth.waiting,
                    running=depth.running,
                    concurrency=policy.concurrency,
                )
            )
        return views

    def _tenant(self, tenant: str, look: Look) -> TenantView:
        policy, limits, depth = (
            self._policy.tenant(tenant),
            self._limits.of_tenant(tenant),
            _Depth.of("tenant", tenant, look),
        )
        return TenantView(
            tenant=tenant,
            waiting=depth.waiting,
            bytes=depth.bytes,
            running=depth.running,
            weight=policy.weight,
            concurrency=policy.concurrency,
            rate_per_s=limits.rate_per_s or None,
            burst=limits.burst if limits.rate_per_s else None,
            limits=_limits("tenant", limits, depth),
        )


def _limits(kind: str, limits: QueueLimits | TenantLimits, depth: _Depth) -> list[LimitView]:
    """Those in force."""
    found = (
        ("tasks", limits.tasks, depth.waiting),
        ("bytes", limits.bytes, depth.bytes),
        ("wait", limits.wait_ms / 1000, depth.wait_s),
    )
    return [LimitView(limit=f"{kind}-{unit}", max=most, used=used) for unit, most, used in found if most]


def _ready(found: QueueLook) -> Counter[str]:
    """Ready tasks by tenant."""
    counts: Counter[str] = Counter()
    for _, tenant, count in found.ready:
        counts[tenant] += count
    return counts


def _beyond(found: QueueLook) -> int:
    """Tenants not looked at, at least: one may stand in several lanes."""
    return max(found.beyond.values(), default=0)


def _types(found: QueueLook, published: Mapping[str, TypeInfo], look: Look) -> list[TypeView]:
    ready: Counter[str] = Counter(dict.fromkeys(published, 0))
    for lane, _, count in found.ready:
        ready[lane.removesuffix("!alone")] += count
    for lane in found.beyond:
        ready[lane.removesuffix("!alone")] += 0
    return [
        TypeView(
            type=name,
            ready=count,
            running=look.count(f"running:type:{name}"),
            concurrency=published[name].concurrency if name in published else None,
        )
        for name, count in sorted(ready.items(), key=lambda each: (-each[1], each[0]))
    ]

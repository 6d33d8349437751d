"""`GET /queues`: what waits, runs and died, how fast it moves, within which limits and shares; at most a second old."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from app.looks import Look, Looks
from app.types import TypeRegistry
from taskgate.contract.models import QueueLook, TypeInfo
from taskgate.contract.store import Store
from taskgate.policy import OTHERS
from taskgate.settings import Settings

TENANTS_SHOWN = 20


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
    """Of the oldest task that is next of its type and tenant."""
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
    """The answer: those with most waiting first."""

    items: list[QueueView]
    more_queues: int
    tenant: TenantView


class Queues:
    """What a tenant may see of the queues: where several share the service, no other's name, and no queue that only
    others have named.
    """

    def __init__(self, store: Store, types: TypeRegistry, settings: Settings) -> None:
        self._looks = Looks(store, types, settings.policy)
        self._settings = settings
        self._policy = settings.policy
        self._apart = settings.tenant_header is not None

    async def view(self, tenant: str, queue: str | None = None) -> QueuesView:
        """`queue`: only that one."""
        look = await self._looks.fresh()
        found = await self._looks.at(look.names, [tenant]) if self._apart else look.found
        names = [
            name
            for name in look.names
            if queue in (None, name) and (not self._apart or name in look.operated or found[name].ready)
        ]
        return QueuesView(
            items=[self._queue(name, look, found[name]) for name in names],
            more_queues=0 if self._apart else look.beyond,
            tenant=self._tenant(tenant, look),
        )

    def _queue(self, name: str, look: Look, found: QueueLook) -> QueueView:
        waiting, size = look.count(f"waiting:queue:{name}"), look.count(f"bytes:queue:{name}")
        scheduled, retrying = look.count(f"scheduled:queue:{name}"), look.count(f"retrying:queue:{name}")
        rate, whole = look.rates.get(name), look.found[name]
        wait_s = waiting / rate if rate else None if waiting else 0.0
        policy = self._policy.queue(name)
        return QueueView(
            queue=name,
            waiting=waiting,
            queued=max(0, waiting - scheduled - retrying),
            scheduled=scheduled,
            retrying=retrying,
            running=look.count(f"running:queue:{name}"),
            dead=whole.dead,
            bytes=size,
            oldest_age_ms=None if whole.oldest_ms is None else max(0, look.now_ms - whole.oldest_ms),
            drain_per_s=None if rate is None else round(rate, 3),
            estimated_wait_ms=None if wait_s is None else round(wait_s * 1000),
            on_full=policy.on_full,
            limits=_limits(
                "queue",
                {
                    "tasks": (policy.limit_tasks or self._settings.queue_limit_tasks, waiting),
                    "bytes": (int(policy.limit_bytes or self._settings.queue_limit_bytes), size),
                    "wait": (policy.limit_wait_s, wait_s),
                },
            ),
            tenants=self._shares(found, whole, look)[:TENANTS_SHOWN],
            more_tenants=self._more(found, whole),
            types=_types(whole, look.types.get(name, {}), look),
        )

    def _shares(self, found: QueueLook, whole: QueueLook, look: Look) -> list[ShareView]:
        """Of `found`, in the `whole`: tenants who were not looked at count as others do."""
        sum_of_weights = sum(self._policy.tenant(each).weight for each in _ready(whole))
        sum_of_weights += _beyond(whole) * self._policy.tenant(OTHERS).weight
        views = []
        for tenant, ready in _ready(found).most_common():
            policy = self._policy.tenant(tenant)
            views.append(
                ShareView(
                    tenant=tenant,
                    ready=ready,
                    weight=policy.weight,
                    share=round(policy.weight / max(sum_of_weights, policy.weight), 4),
                    waiting=look.count(f"waiting:tenant:{tenant}"),
                    running=look.count(f"running:tenant:{tenant}"),
                    concurrency=policy.concurrency,
                )
            )
        return views

    def _more(self, found: QueueLook, whole: QueueLook) -> int:
        return _beyond(whole) + len(_ready(whole)) - min(TENANTS_SHOWN, len(_ready(found)))

    def _tenant(self, tenant: str, look: Look) -> TenantView:
        policy = self._policy.tenant(tenant)
        waiting, size = look.count(f"waiting:tenant:{tenant}"), look.count(f"bytes:tenant:{tenant}")
        rate = look.rates.get(f"tenant:{tenant}")
        return TenantView(
            tenant=tenant,
            waiting=waiting,
            bytes=size,
            running=look.count(f"running:tenant:{tenant}"),
            weight=policy.weight,
            concurrency=policy.concurrency,
            rate_per_s=policy.rate_per_s,
            burst=policy.burst,
            limits=_limits(
                "tenant",
                {
                    "tasks": (policy.limit_tasks, waiting),
                    "bytes": (policy.limit_bytes and int(policy.limit_bytes), size),
                    "wait": (policy.limit_wait_s, waiting / rate if rate else None if waiting else 0.0),
                },
            ),
        )


def _limits(whose: str, given: Mapping[str, tuple[float | None, float | None]]) -> list[LimitView]:
    """Those in force."""
    return [
        LimitView(limit=f"{whose}-{unit}", max=most, used=used)
        for unit, (most, used) in given.items()
        if most is not None
    ]


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

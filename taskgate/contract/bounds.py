"""What limits say of the queues and tenants of a group, and what the group has left of them."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

from taskgate.contract.errors import (
    KeyRateLimited,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    Refused,
)
from taskgate.contract.models import (
    UNLIMITED,
    Limits,
    QueueLimits,
    Room,
    TenantLimits,
)
from taskgate.contract.packing import encode, fields_of


class Bounds(NamedTuple):
    """A partition's share of the limits of some queues and tenants, and the same as arguments of a script."""

    queues: dict[str, QueueLimits]
    tenants: dict[str, TenantLimits]
    """Those that have any."""
    packed_queues: bytes
    packed_tenants: bytes


@functools.lru_cache(64)
def bounds_of(limits: Limits, partitions: int, queues: frozenset[str], tenants: frozenset[str]) -> Bounds:
    """Most groups are of the same few."""
    of_queues = {name: limits.of_queue(name).share(partitions) for name in queues}
    asked = {name: limits.of_tenant(name) for name in tenants}
    of_tenants = {name: found.share(partitions) for name, found in asked.items() if found != UNLIMITED}
    return Bounds(of_queues, of_tenants, _pack_named(of_queues), _pack_named(of_tenants))


def _pack_named(limits: Mapping[str, QueueLimits | TenantLimits]) -> bytes:
    return encode([(name, *fields_of(each)) for name, each in limits.items()])


class Rooms(dict[tuple[str, str], Room]):
    """What a group has left of its limits, by queue and tenant: made once for all items that are alike."""

    def __init__(self, bounds: Bounds, used: list[list[int]], used_by_tenants: list[list[int]]) -> None:
        self._bounds = bounds
        self._used = dict(zip(bounds.queues, used, strict=True))
        self._used_by_tenants = dict(zip(bounds.tenants, used_by_tenants, strict=True))

    def __missing__(self, place: tuple[str, str]) -> Room:
        queue, tenant = place
        waiting, waiting_bytes = self._used[queue]
        own_waiting, own_bytes, left, more_ms = self._used_by_tenants.get(tenant, (0, 0, 0, 0))
        room = self[place] = Room(
            queue=self._bounds.queues[queue],
            waiting=waiting,
            waiting_bytes=waiting_bytes,
            tenant=self._bounds.tenants.get(tenant, UNLIMITED),
            tenant_waiting=own_waiting,
            tenant_waiting_bytes=own_bytes,
            rate_left=left,
            rate_more_ms=more_ms,
        )
        return room


_REFUSALS: dict[str, type[Refused]] = {
    "queue": QueueFull,
    "tenant": QuotaExceeded,
    "rate": RateLimited,
    "rate-key": KeyRateLimited,
}


def refusal(limit: str, retry_ms: int, queue: str, tenant: str, room: Room | None = None) -> Refused:
    error = _REFUSALS.get(limit) or _REFUSALS[limit.partition("-")[0]]
    return error(limit=limit, queue=queue, tenant=tenant, retry_after_s=retry_ms / 1000, room=room)

"""`RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10): what limits a submission."""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

from app.reply import Headers
from taskgate.contract.errors import Refused
from taskgate.contract.models import QueueLimits, Room, TenantLimits


class _Limit(NamedTuple):
    name: str
    quota: int
    left: int
    unit: str = ""
    """Of the quota; "": requests."""
    window_s: int = 0
    more_in_s: int = 0
    """Until there is more; 0: not known."""

    def policy(self) -> str:
        unit = f';qu="{self.unit}"' if self.unit else ""
        window = f";w={self.window_s}" if self.window_s else ""
        return f'"{self.name}";q={self.quota}{unit}{window}'

    def state(self) -> str:
        more = f";t={self.more_in_s}" if self.more_in_s else ""
        return f'"{self.name}";r={self.left}{more}'


@functools.lru_cache(256)
def headers(room: Room) -> Headers:
    """The same for all of a group that are of one queue and tenant, since their `Room` is the same."""
    return _lines(list(_limits(room)))


def refused(error: Refused, room: Room) -> dict[str, str]:
    """Those of a 429: with the time until there is more of the limit that refused it, which may be a wait."""
    found = [
        each._replace(more_in_s=math.ceil(error.retry_after_s)) if each.name == error.limit else each
        for each in (*_limits(room), *_waits(room, error.limit))
    ]
    return {name.decode(): value.decode() for name, value in _lines(found)}


def _lines(limits: list[_Limit]) -> Headers:
    return [
        (b"ratelimit-policy", ", ".join([each.policy() for each in limits]).encode()),
        (b"ratelimit", ", ".join([each.state() for each in limits]).encode()),
    ]


def _limits(room: Room) -> Iterator[_Limit]:
    yield from _amounts("queue", room.queue, room.waiting, room.waiting_bytes)
    tenant = room.tenant
    yield from _amounts("tenant", tenant, room.tenant_waiting, room.tenant_waiting_bytes)
    if tenant.rate_per_s:
        yield _Limit(
            "rate",
            tenant.burst,
            room.rate_left,
            window_s=math.ceil(tenant.burst / tenant.rate_per_s),
            more_in_s=math.ceil(room.rate_more_ms / 1000),
        )


def _amounts(kind: str, limits: QueueLimits | TenantLimits, waiting: int, waiting_bytes: int) -> Iterator[_Limit]:
    if limits.tasks:
        yield _Limit(f"{kind}-tasks", limits.tasks, max(0, limits.tasks - waiting), "concurrent-requests")
    if limits.bytes:
        yield _Limit(f"{kind}-bytes", limits.bytes, max(0, limits.bytes - waiting_bytes), "content-bytes")


def _waits(room: Room, limit: str) -> Iterator[_Limit]:
    for kind, wait_ms in (("queue", room.queue.wait_ms), ("tenant", room.tenant.wait_ms)):
        if limit == f"{kind}-wait":
            yield _Limit(limit, math.ceil(wait_ms / 1000), 0, "seconds")

"""`RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10): what limits a submission."""

import functools
import math
from collections.abc import Iterator

from app.reply import Headers
from taskgate.contract.errors import KeyRateLimited, Refused
from taskgate.contract.models import QueueLimits, Room, TenantLimits


@functools.lru_cache(256)
def headers(room: Room) -> Headers:
    """The same for all of a group that are of one queue and tenant, since their `Room` is the same."""
    return [
        (b"ratelimit-policy", _policy(room.queue, room.tenant).encode()),
        (b"ratelimit", ", ".join([_state(name, left, more_s) for name, left, more_s in _left(room)]).encode()),
    ]


def refused(error: Refused, room: Room) -> dict[str, str]:
    """Those of a 429: with the time until there is more of the limit that refused it, which may be a wait."""
    again_s = math.ceil(error.retry_after_s)
    state = [_state(name, left, again_s if name == error.limit else more_s) for name, left, more_s in _left(room)]
    policy = _policy(room.queue, room.tenant)
    if error.limit.endswith("-wait"):
        wait_ms = (room.queue if error.limit == "queue-wait" else room.tenant).wait_ms
        policy = f'{policy}, "{error.limit}";q={math.ceil(wait_ms / 1000)};qu="seconds"'
        state.append(_state(error.limit, 0, again_s))
    if isinstance(error, KeyRateLimited):
        _, per_s, burst = error.key_rate.split()
        policy = f'{policy}, "{error.limit}";q={burst};w={math.ceil(int(burst) / float(per_s))}'
        state.append(_state(error.limit, 0, again_s))
    return {"ratelimit-policy": policy, "ratelimit": ", ".join(state)}


def _state(name: str, left: int, more_s: int) -> str:
    """`more_s`: until there is more; 0: not known."""
    return f'"{name}";r={left};t={more_s}' if more_s else f'"{name}";r={left}'


def _left(room: Room) -> list[tuple[str, int, int]]:
    """Of each limit in force: its name, what is left, the seconds until there is more. In the order of `_policy`."""
    queue, tenant = room.queue, room.tenant
    found = []
    if queue.tasks:
        found.append(("queue-tasks", max(0, queue.tasks - room.waiting), 0))
    if queue.bytes:
        found.append(("queue-bytes", max(0, queue.bytes - room.waiting_bytes), 0))
    if tenant.tasks:
        found.append(("tenant-tasks", max(0, tenant.tasks - room.tenant_waiting), 0))
    if tenant.bytes:
        found.append(("tenant-bytes", max(0, tenant.bytes - room.tenant_waiting_bytes), 0))
    if tenant.rate_per_s:
        found.append(("rate", room.rate_left, math.ceil(room.rate_more_ms / 1000)))
    return found


@functools.lru_cache(256)
def _policy(queue: QueueLimits, tenant: TenantLimits) -> str:
    return ", ".join([*_quotas("queue", queue), *_quotas("tenant", tenant), *_rate(tenant)])


def _quotas(kind: str, limits: QueueLimits | TenantLimits) -> Iterator[str]:
    if limits.tasks:
        yield f'"{kind}-tasks";q={limits.tasks};qu="concurrent-requests"'
    if limits.bytes:
        yield f'"{kind}-bytes";q={limits.bytes};qu="content-bytes"'


def _rate(tenant: TenantLimits) -> Iterator[str]:
    if tenant.rate_per_s:
        yield f'"rate";q={tenant.burst};w={math.ceil(tenant.burst / tenant.rate_per_s)}'

"""Who is let in, in plain Python: limits of queues and tenants, and rates. A part of reference.py."""

from typing import NamedTuple

from taskgate.contract.limits import milliseconds
from taskgate.policy import QueuePolicy, TenantPolicy


class Used(NamedTuple):
    """What waits in a queue, or of a tenant (`queued`: not for a time), and how fast it leaves; None: not measured."""

    tasks: int
    queued: int
    bytes: int
    leaving_per_s: float | None


def passed_limit(kind: str, limits: QueuePolicy | TenantPolicy, used: Used, size: int) -> str | None:
    """The first limit that one more task of that size would pass; by wait an empty one always takes a task."""
    if limits.limit_tasks is not None and used.tasks >= limits.limit_tasks:
        return f"{kind}-tasks"
    if limits.limit_bytes is not None and used.bytes + size > limits.limit_bytes:
        return f"{kind}-bytes"
    if limits.limit_wait_s is not None and used.leaving_per_s is not None:
        in_time = milliseconds(limits.limit_wait_s) * used.leaving_per_s / 1000
        if used.queued > in_time:
            return f"{kind}-wait"
    return None


def burst_of(policy: TenantPolicy) -> int:
    return policy.burst or max(1, int(policy.rate_per_s or 1))


class Rates:
    """How many submissions each tenant is ahead of its rate (GCRA). A clock that steps back lets none pass.

    Counted in submissions, so that another rate or burst holds from its first call on.
    """

    def __init__(self) -> None:
        self._ahead: dict[str, tuple[int, float]] = {}

    def _ahead_of(self, tenant: str, policy: TenantPolicy, now_ms: int) -> float:
        at, ahead = self._ahead.get(tenant, (now_ms, 0.0))
        passed = max(0, now_ms - at) * (policy.rate_per_s or 0) / 1000
        return max(0.0, min(ahead, burst_of(policy)) - passed)

    def excess_ms(self, tenant: str, policy: TenantPolicy, now_ms: int) -> float:
        """After so long one more would be within its rate; at most 0: now."""
        if policy.rate_per_s is None:
            return 0.0
        over = self._ahead_of(tenant, policy, now_ms) - (burst_of(policy) - 1)
        return (over if over > 1e-6 else min(over, 0.0)) * 1000 / policy.rate_per_s

    def refuse(self, tenant: str, policy: TenantPolicy, now_ms: int) -> None:
        """One came too fast: it takes nothing, but from now on time counts from here."""
        self._ahead[tenant] = now_ms, self._ahead_of(tenant, policy, now_ms)

    def count(self, tenant: str, policy: TenantPolicy, now_ms: int) -> None:
        if policy.rate_per_s is not None:
            self._ahead[tenant] = now_ms, self._ahead_of(tenant, policy, now_ms) + 1

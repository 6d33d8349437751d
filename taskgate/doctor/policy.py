"""Checks of the policy file: what it allows in all, and what of it cannot do what somebody meant."""

import math
from collections.abc import Iterator

from taskgate.contract.shares import OTHERS
from taskgate.doctor.finding import Finding, Level, judge, mib
from taskgate.footprint import TASK_BYTES, named_queues, spilled_bytes, waiting_bytes
from taskgate.settings import Settings


def policy(settings: Settings) -> list[Finding]:
    return [_summary(settings), *_tenants(settings), *_spill(settings), *_too_small(settings), *_bursts(settings)]


def _summary(settings: Settings) -> Finding:
    said = settings.policy
    source = "none"
    if settings.policy_file is not None:
        source = f"{settings.policy_file}: {len(said.queues)} queues, {len(said.tenants)} tenants"
    allowed = f"up to {mib(waiting_bytes(settings))} may wait in {', '.join(named_queues(settings))}"
    return Finding(Level.OK, "policy", f"{source}; {allowed}")


def _tenants(settings: Settings) -> Iterator[Finding]:
    """Without a header that names them, there is one."""
    others = settings.policy.tenants.keys() - {OTHERS, "default"}
    if others:
        yield judge(
            "tenants",
            f"{len(others)} named",
            warn=settings.tenant_header is None,
            advice=f"every caller is the tenant `default`, nobody is {min(others)}: --tenant-header names the header "
            "by which a trusted proxy tells them apart",
        )


def _spill(settings: Settings) -> Iterator[Finding]:
    """What is spilled is kept as finished tasks are, and goes as they do when these keep too much."""
    most = spilled_bytes(settings)
    if most:
        yield judge(
            "spill",
            f"{mib(most)} of dead letters in the queues that are named",
            warn=most > settings.retention_bytes,
            advice="finished tasks of all kinds may keep less, so the oldest dead letters would be deleted: raise "
            "--retention-bytes, or lower spill_bytes",
        )


def _too_small(settings: Settings) -> Iterator[Finding]:
    largest = settings.max_body_bytes + TASK_BYTES
    limits = [(f"queues.{name}", each.limit_bytes) for name, each in settings.policy.queues.items()]
    limits += [(f"tenants.{name}", each.limit_bytes) for name, each in settings.policy.tenants.items()]
    small = [name for name, limit in limits if limit is not None and limit < largest]
    if small:
        yield judge(
            "largest task",
            f"bodies may have {settings.max_body_bytes:,} bytes",
            warn=True,
            advice=f"none of that size ever fits into limit_bytes of {', '.join(small)}: raise it, or lower "
            "--max-body-bytes",
        )


def _bursts(settings: Settings) -> Iterator[Finding]:
    """Retry-After has whole seconds: who obeys comes once a second, and then `burst` is what gets in."""
    tenants = {name: settings.policy.tenant(name) for name in settings.policy.tenants}
    small = [name for name, each in tenants.items() if (each.burst or math.inf) < math.floor(each.rate_per_s or 0)]
    if small:
        yield judge(
            "bursts",
            f"{len(small)} below what the rate allows in a second",
            warn=True,
            advice="callers who were refused together and obey Retry-After come again together, and get in at no more "
            f"than `burst` a second: raise it in {', '.join(f'tenants.{name}' for name in small)} to rate_per_s",
        )

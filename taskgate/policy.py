"""What queues and tenants may use: the file that `TASKGATE_POLICY_FILE` names, checked before anything starts.

    [queues.webhooks]
    limit_tasks = 20_000
    limit_wait_s = 30
    on_full = "spill"

    [tenants."*"]           # every tenant; what a named one leaves out is taken from here
    limit_tasks = 1_000
    rate_per_s = 50
    burst = 100
    concurrency = 4

    [tenants.gold]
    weight = 3

Gateways admit by it, supervisors claim by it: give all of them the same file.
"""

import math
import tomllib
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from taskgate.contract.ids import NAME_RULE, is_name
from taskgate.contract.limits import milliseconds
from taskgate.contract.models import Limits, QueueLimits, TenantLimits
from taskgate.contract.shares import OTHERS

_MOST_NAMED = 1000
"""A claim carries what is said of named tenants."""

P = TypeVar("P", bound="_Limited")


class PolicyError(Exception):
    """One line per mistake of the file."""


class _Limited(BaseModel):
    """What may wait. Unset is no limit of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    limit_tasks: PositiveInt | None = Field(None, le=10**9)
    limit_bytes: ByteSize | None = Field(None, gt=0, le=2**50)
    limit_wait_s: PositiveFloat | None = Field(None, le=366 * 86_400)
    """A task is refused while those before it are expected to take longer than that to leave."""


class QueuePolicy(_Limited):
    """One queue; limits that it leaves out are those of the settings."""

    on_full: Literal["refuse", "wait", "spill"] = "refuse"
    """`refuse`: 429. `wait`: for room, up to `wait_ms`, then 429. `spill`: kept as a dead letter of kind `overflow`."""
    wait_ms: int = Field(1000, ge=1, le=30_000)
    spill_tasks: PositiveInt = Field(10_000, le=10**7)
    spill_bytes: ByteSize = Field(ByteSize(64 * 1024**2), gt=0, le=2**40)


class TenantPolicy(_Limited):
    """One tenant, over all queues."""

    rate_per_s: PositiveFloat | None = Field(None, le=10**6)
    """Submissions a second, once `burst` is used up."""
    burst: PositiveInt | None = Field(None, le=10**6)
    """None: what the rate allows in a second, at least 1."""
    concurrency: PositiveInt | None = Field(None, le=10**6)
    """Tasks of it that run at a time."""
    weight: float = Field(1.0, ge=0.01, le=1000)
    """Its share of what runs, among tenants that have tasks of the same type in the same queue."""


def _names(named: dict[str, P]) -> dict[str, P]:
    if len(named) > _MOST_NAMED:
        raise ValueError(f"at most {_MOST_NAMED} can be named")
    for name in named:
        if name != OTHERS and not is_name(name):
            raise ValueError(f"{name!r}: names have {NAME_RULE}; {OTHERS!r} stands for all others")
    return named


class Policy(BaseModel):
    """The whole file; without one, no queue and no tenant is treated in a special way."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    queues: Annotated[dict[str, QueuePolicy], AfterValidator(_names)] = {}
    tenants: Annotated[dict[str, TenantPolicy], AfterValidator(_names)] = {}

    def queue(self, name: str) -> QueuePolicy:
        return self._queue(name)

    def tenant(self, name: str) -> TenantPolicy:
        return self._tenant(name)

    @property
    def lets_wait(self) -> bool:
        """Whether somebody may wait for room in a queue."""
        return any(queue.on_full == "wait" for queue in self.queues.values())

    @cached_property
    def weighs(self) -> bool:
        """Whether tenants have different weights."""
        return len({self.tenant(name).weight for name in (*self.tenants, OTHERS)}) > 1

    @cached_property
    def _queue(self) -> Callable[[str], QueuePolicy]:
        return _lookup(self.queues, QueuePolicy.model_validate({}))

    @cached_property
    def _tenant(self) -> Callable[[str], TenantPolicy]:
        return _lookup(self.tenants, TenantPolicy.model_validate({}))


def limits(policy: Policy, others: QueueLimits) -> Limits:
    """What admission goes by; `others`: of queues, where the policy says nothing."""
    return Limits(
        queue=_of_queue(policy.queue(OTHERS), others),
        tenant=_of_tenant(policy.tenant(OTHERS)),
        queues={name: _of_queue(policy.queue(name), others) for name in policy.queues},
        tenants={name: _of_tenant(policy.tenant(name)) for name in policy.tenants},
    )


def _of_queue(said: QueuePolicy, others: QueueLimits) -> QueueLimits:
    return QueueLimits(
        tasks=said.limit_tasks or others.tasks,
        bytes=int(said.limit_bytes or others.bytes),  # nobody can encode a ByteSize
        wait_ms=milliseconds(said.limit_wait_s) or others.wait_ms,
        on_full=said.on_full,
        spill_tasks=said.spill_tasks,
        spill_bytes=int(said.spill_bytes),
    )


def _of_tenant(said: TenantPolicy) -> TenantLimits:
    rate_per_s = said.rate_per_s or 0.0
    return TenantLimits(
        tasks=said.limit_tasks or 0,
        bytes=int(said.limit_bytes or 0),
        wait_ms=milliseconds(said.limit_wait_s),
        rate_per_s=rate_per_s,
        burst=(said.burst or max(1, math.floor(rate_per_s))) if rate_per_s else 1,
    )


def _lookup(named: dict[str, P], nothing: P) -> Callable[[str], P]:
    others = named.get(OTHERS, nothing)
    said = others.model_dump(exclude_unset=True)
    whole = {
        name: type(nothing).model_validate(said | one.model_dump(exclude_unset=True)) for name, one in named.items()
    }
    return partial(_found, whole, others)  # no lambda: gateways of several processes pickle their settings


def _found(whole: dict[str, P], others: P, name: str) -> P:
    return whole.get(name, others)


def load(path: Path | None) -> Policy:
    """
    Raises:
        PolicyError: the file cannot be read, or does not fit.
    """
    if path is None:
        return Policy()
    try:
        return Policy.model_validate(tomllib.loads(path.read_text()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PolicyError(f"{path}: {error}") from None
    except ValidationError as error:
        lines = (f"{path}: {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False))
        raise PolicyError("\n".join(lines)) from None

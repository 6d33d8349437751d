"""The most memory that processes and Redis may use: what is compared with what the machine gives."""

from collections.abc import Sequence

from taskgate.contract.shares import OTHERS
from taskgate.settings import Settings

_MIB = 1024**2
PROCESS_BYTES = 96 * _MIB
"""A supervisor, and a child with its handlers loaded: each took 40 to 60 MiB when measured."""
PIPELINE = 128
"""Tasks that a sync child may be given ahead, where they take milliseconds."""

TASK_BYTES = 2048
"""What admission counts for a task besides its payload."""


def waiting_bytes(settings: Settings) -> int:
    """Of tasks that may wait in the queues that are named here; each other one that clients name may have as much."""
    return sum(settings.limits.of_queue(name).bytes for name in named_queues(settings))


def named_queues(settings: Settings) -> list[str]:
    """By the policy and as those to work on; `default`, if none is named for that."""
    return sorted((settings.policy.queues.keys() - {OTHERS}) | set(settings.queues or ("default",)))


def spilled_bytes(settings: Settings) -> int:
    """As `waiting_bytes`, of dead letters of kind `overflow`: among what finished tasks may keep (RETENTION_BYTES)."""
    limits = [settings.limits.of_queue(name) for name in named_queues(settings)]
    return sum(each.spill_bytes for each in limits if each.on_full == "spill")


def worst_case_bytes(settings: Settings, limits_mb: Sequence[int | None]) -> int:
    """Of one supervisor. `limits_mb`: `memory_limit_mb` of each sync type; what types without one take comes on top.

    worker_processes × 1.25 × largest limit, other processes as they start, and every task in hand with its payload
    and its result. A child is at least a process. Beside the working ones there may be a spare and one that exits, and
    where there are async ones, one for suspects and one that takes over from another.
    """
    largest = max((limit for limit in limits_mb if limit), default=0) * _MIB * 5 // 4
    working = settings.worker_processes * max(PROCESS_BYTES, largest)
    others = 3 + settings.async_processes + 2 * (settings.async_processes > 0)
    in_hand = settings.worker_processes * PIPELINE + settings.async_processes * settings.async_slots
    return working + others * PROCESS_BYTES + in_hand * (settings.max_body_bytes + settings.result_max_bytes)


def shortage(settings: Settings, limits_mb: Sequence[int | None], available: int | None) -> str:
    """Why the worst case does not fit, in one line; "" when it does, or when nothing says what is available."""
    worst = worst_case_bytes(settings, limits_mb)
    if available is None or worst <= available:
        return ""
    return (
        f"tasks at their limits need up to {worst // _MIB:,} MiB and there are {available // _MIB:,}: the kernel may "
        "kill what it likes; give it more, or lower memory_limit_mb, --worker-processes, --max-body-bytes or "
        "--async-slots"
    )

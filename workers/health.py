"""Health of a running task: a pure function of sampled numbers."""

from typing import NamedTuple

from taskgate.contract.states import Health


class Evidence(NamedTuple):
    """What was measured of a task's process over one interval; None is unknown."""

    interval_ms: float
    cpu_ms: float | None
    """CPU time used in the interval; of an async task that made no step, none."""
    cpu_wait_ms: float | None
    """Time its threads stood on the run queue in the interval."""
    quiet_ms: float
    """Since it last said anything (progress, event, checkpoint, output, log), or the start."""
    waiting: bool
    """Inside `attempt.waiting(…)`."""
    paused: bool
    """Stopped by the guard."""
    runnable: bool = False
    """Its main thread runs or wants to, now."""
    loop_taken: bool = False
    """Async: one step of another task has taken its event loop for the whole interval."""


STARVED_SHARE = 0.5
COMPUTING_SHARE = 0.02


def judge(evidence: Evidence, *, stall_after_ms: float) -> Health | None:
    """The verdict, or None where the evidence does not carry one."""
    if evidence.paused:
        return Health.PAUSED
    if evidence.loop_taken:
        return Health.STARVED
    if evidence.cpu_wait_ms is not None and evidence.cpu_wait_ms > STARVED_SHARE * evidence.interval_ms:
        return Health.STARVED
    if evidence.cpu_ms is not None and evidence.cpu_ms > COMPUTING_SHARE * evidence.interval_ms:
        return Health.COMPUTING
    if evidence.waiting or evidence.quiet_ms < stall_after_ms:
        return Health.WAITING
    if evidence.runnable:  # the kernel counts a wait for a CPU when it is over
        return Health.STARVED
    return Health.STALLED if evidence.cpu_ms is not None else None

"""The states of a task and the one table of what may follow what."""

from enum import StrEnum


class Status(StrEnum):
    """Where a task is in its life. Published as an open enum: clients must accept words added later."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


class ErrorKind(StrEnum):
    """Why an attempt or a task failed (`error.kind`)."""

    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    CRASH = "crash"
    MEMORY = "memory"
    LOST = "lost"
    LEASE = "lease"
    UNKNOWN_TYPE = "unknown_type"
    INVALID_PAYLOAD = "invalid_payload"
    RESULT = "result"
    OVERFLOW = "overflow"


class Health(StrEnum):
    """What the sampled numbers of a running task say about it."""

    COMPUTING = "computing"
    WAITING = "waiting"
    STARVED = "starved"
    STALLED = "stalled"
    PAUSED = "paused"
    LOST = "lost"


FINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.EXPIRED})
WAITING = frozenset({Status.SCHEDULED, Status.QUEUED, Status.RETRYING})
"""What admission counts: accepted, not running, not final."""

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.SCHEDULED: frozenset({Status.QUEUED, Status.CANCELED, Status.EXPIRED}),
    Status.QUEUED: frozenset({Status.RUNNING, Status.CANCELED, Status.EXPIRED, Status.FAILED}),
    Status.RUNNING: frozenset({Status.SUCCEEDED, Status.FAILED, Status.RETRYING, Status.QUEUED, Status.CANCELING}),
    Status.RETRYING: frozenset({Status.QUEUED, Status.CANCELED, Status.EXPIRED}),
    Status.CANCELING: frozenset({Status.CANCELED, Status.SUCCEEDED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset({Status.QUEUED, Status.SCHEDULED}),
    Status.CANCELED: frozenset(),
    Status.EXPIRED: frozenset(),
}
"""`failed -> queued | scheduled` is a redrive (at a rate: scheduled); every other final state is for ever. `retrying ->
expired`: put back unstarted; `queued -> failed`: no live supervisor serves its type."""

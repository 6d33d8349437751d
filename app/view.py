"""The task as clients see it: one function makes the JSON that every answer and stream carries."""

from datetime import UTC, datetime

import msgspec

from taskgate.contract.models import TaskRecord
from taskgate.contract.states import FINAL, Status

POLL_MIN_MS, POLL_MAX_MS = 500, 5_000
_AGE_PER_POLL = 20
"""A task as old as that many poll intervals is asked that seldom."""

_FINAL = tuple(FINAL)
"""Compared by identity: looking an enum up in a set calls its Python hash."""

encode = msgspec.json.Encoder().encode


class Progress(msgspec.Struct, kw_only=True):
    """What the handler said last, and how long ago."""

    current: int | float | None = None
    total: int | float | None = None
    percent: int | float | None = None
    unit: str | None = None
    stage: str | None = None
    message: str | None = None
    age_ms: int | None = None


class StoredProgress(Progress, kw_only=True):
    """As the record has it: when, not how long ago."""

    at_ms: int | None = None
    base: int | float | None = None
    """How far it was when this attempt first said so, where earlier attempts have worked on it; and when that was."""
    base_ms: int | None = None


class Estimate(msgspec.Struct, kw_only=True):
    """What is not known, only reckoned; it may be wrong."""

    starts_in_ms: int | None = None
    """Of a queued task."""
    remaining_ms: int | None = None
    """Of a running one: until its end."""
    basis: str
    """`progress` (its own pace), `past_runs` (of its type), `drain_rate` (of its queue)."""


class Urls(msgspec.Struct):
    """Where everything about the task is."""

    self: str
    events: str
    cancel: str
    result: str


class TaskView(msgspec.Struct, kw_only=True):
    """A task now."""

    id: str
    type: str
    status: Status
    """An open enum: more words may come."""
    version: int
    """Grows with status, progress and events."""
    queue: str
    priority: int
    health: str | None
    """Of a running task: computing, waiting, starved, stalled, paused or lost; null: not known."""
    stage: str | None
    """What it waits for, or the service does with it, in words; null while its handler works, and when it has ended."""
    progress: Progress | None
    queue_position: int | None
    """Tasks of yours of the same type that start before it."""
    estimate: Estimate | None
    """Null: nothing is known to reckon with."""
    attempt: int
    max_attempts: int
    worker: str | None
    heartbeat_age_ms: int | None
    effort: msgspec.Raw | None
    """CPU time, waits and memory of the attempt, as measured."""
    timeout_s: float
    created_at: datetime
    scheduled_at: datetime | None
    """When it starts, or is tried again."""
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    """Last moment to start."""
    purge_at: datetime | None
    cancel_requested: bool
    error: msgspec.Raw | None
    result_url: str | None
    """Null: no result (yet)."""
    metadata: msgspec.Raw | None
    unique_key: str | None
    concurrency_key: str | None
    poll_after_ms: int | None
    """When to ask again; null once it has ended."""
    urls: Urls


_progress = msgspec.json.Decoder(StoredProgress).decode


def task_view(record: TaskRecord, estimate: Estimate | None = None) -> TaskView:
    spec = record.spec
    path = f"/tasks/{spec.id}"
    waiting = record.status in (Status.SCHEDULED, Status.RETRYING)
    return TaskView(
        id=spec.id,
        type=spec.type,
        status=record.status,
        version=record.version,
        queue=spec.queue,
        priority=spec.priority,
        health=record.seen_health(),
        stage=record.seen_stage(),
        progress=progress_view(record) if record.progress else None,
        queue_position=record.position,
        estimate=estimate,
        attempt=record.attempt,
        max_attempts=spec.max_attempts,
        worker=record.worker or None,
        heartbeat_age_ms=None if record.alive_ms is None else max(0, record.lease_ms - record.alive_ms),
        effort=msgspec.Raw(record.effort) if record.effort else None,
        timeout_s=spec.timeout_s,
        created_at=at(record.created_ms),
        scheduled_at=at(record.due_ms) if waiting and record.due_ms else None,
        started_at=at(record.started_ms) if record.started_ms else None,
        finished_at=at(record.finished_ms) if record.finished_ms else None,
        deadline_at=at(record.deadline_ms) if record.deadline_ms else None,
        purge_at=at(record.purge_ms) if record.purge_ms else None,
        cancel_requested=record.status in (Status.CANCELING, Status.CANCELED),
        error=msgspec.Raw(record.error) if record.error else None,
        result_url=f"{path}/result" if record.has_result else None,
        metadata=None if spec.metadata is msgspec.UNSET else spec.metadata,
        unique_key=spec.unique_key or None,
        concurrency_key=spec.concurrency_key or None,
        poll_after_ms=poll_after_ms(record),
        urls=Urls(path, f"{path}/events", f"{path}/cancel", f"{path}/result"),
    )


def task_json(record: TaskRecord, estimate: Estimate | None = None) -> bytes:
    return encode(task_view(record, estimate))


def stored_progress(record: TaskRecord) -> StoredProgress | None:
    try:
        return _progress(record.progress) if record.progress else None
    except msgspec.DecodeError:
        return None  # one broken record must not keep a whole list from being shown


def progress_view(record: TaskRecord) -> Progress | None:
    stored = stored_progress(record)
    if stored is None:
        return None
    return Progress(
        current=stored.current,
        total=stored.total,
        percent=stored.percent,
        unit=stored.unit,
        stage=stored.stage,
        message=stored.message,
        age_ms=None if stored.at_ms is None else max(0, record.now_ms - stored.at_ms),
    )


def poll_after_ms(record: TaskRecord) -> int | None:
    """From 500 to 5,000 with the task's age: what has run for minutes will not end in this very second."""
    if record.status in _FINAL:
        return None
    return min(POLL_MAX_MS, max(POLL_MIN_MS, (record.now_ms - record.created_ms) // _AGE_PER_POLL))


def at(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)

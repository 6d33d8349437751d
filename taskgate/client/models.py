"""What the service shows and takes, as its JSON."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})


class Progress(TypedDict, total=False):
    current: float
    total: float | None
    percent: float | None
    unit: str
    stage: str
    message: str
    age_ms: int


class Task(TypedDict, total=False):
    """A task as the service shows it. `status` is an open enum; fields may be added."""

    id: str
    type: str
    status: str
    version: int
    queue: str
    priority: int
    attempt: int
    max_attempts: int
    timeout_s: float
    created_at: str
    scheduled_at: str | None
    started_at: str | None
    finished_at: str | None
    deadline_at: str | None
    purge_at: str | None
    progress: Progress | None
    effort: dict[str, Any] | None
    health: str | None
    heartbeat_age_ms: int | None
    worker: str | None
    queue_position: int | None
    poll_after_ms: int | None
    cancel_requested: bool
    error: dict[str, Any] | None
    result_url: str | None
    metadata: dict[str, Any] | None
    urls: dict[str, str]


class TaskOptions(TypedDict, total=False):
    """What a submission may carry beside its type and payload."""

    queue: str
    priority: int
    delay_s: float
    run_at: str
    deadline_s: float
    timeout_s: float
    max_attempts: int
    metadata: Mapping[str, Any]


class Event(NamedTuple):
    """`name`: snapshot, status, progress, custom, gap or end. `id`: its own or the last before it, where to resume."""

    id: str
    name: str
    data: dict[str, Any]

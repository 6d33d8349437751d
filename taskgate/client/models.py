"""What the service shows and takes, as its JSON."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

from taskgate.contract import states

FINAL = frozenset(map(str, states.FINAL))


class Progress(TypedDict, total=False):
    current: float
    total: float | None
    percent: float | None
    unit: str
    stage: str
    message: str
    age_ms: int | None
    """When it was read; what an event told says its time instead."""
    at_ms: int | None


class Estimate(TypedDict, total=False):
    """A guess, and where it comes from."""

    starts_in_ms: int | None
    remaining_ms: int | None
    basis: str


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
    stage: str | None
    progress: Progress | None
    estimate: Estimate | None
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
    unique_key: str | None
    concurrency_key: str | None
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
    unique_key: str
    """While another task with it has not ended, `submit` returns that one."""
    on_conflict: str
    """Instead: `replace` (the other one is canceled if it still waits) or `refuse` (UniqueConflict)."""
    concurrency_key: str


class TaskFilters(TypedDict, total=False):
    """What `list` can ask for: times are RFC 3339; `metadata` wants all these keys with these values."""

    status: str
    type: str
    queue: str
    created_after: str
    created_before: str
    metadata: Mapping[str, str]


class TaskPage(NamedTuple):
    """Newest first. `next_cursor`: for the next page, None at the end; a page may be short, or empty, before that."""

    items: list[Task]
    next_cursor: str | None


class Attempt(TypedDict, total=False):
    """An attempt of a dead letter; `redriven_at`: the redrive that it came of, None: the submission."""

    attempt: int
    started_at: str
    finished_at: str
    worker: str
    error: dict[str, Any] | None
    rss_peak_bytes: int | None
    redriven_at: str | None


class Letter(Task, total=False):
    """A dead letter with its attempts, oldest first; `attempts_lost` older ones are no longer kept."""

    attempts: list[Attempt]
    attempts_lost: int


class LetterFilters(TypedDict, total=False):
    """Which dead letters: by queue, type, kind of their error, and the time of their end (RFC 3339)."""

    queue: str
    type: str
    kind: str
    after: str
    before: str


class Redriven(NamedTuple):
    """What one request came to. `next_cursor`: there are more; `refused`: for want of room, until `retry_after_s`.

    With a filter `retry_after_s` is None while others are still to be tried, which may have room. Of named ones
    `refused_ids` are those refused, and `next_start_at` is the `start_at` with which other ids keep to the same rate.
    """

    redriven: int
    refused: int
    skipped: int
    limit: str | None
    retry_after_s: int | None
    remaining: int
    next_cursor: str | None
    refused_ids: tuple[str, ...] = ()
    next_start_at: str | None = None


class Purged(NamedTuple):
    """What one request came to. `next_cursor`: there are more."""

    deleted: int
    remaining: int
    next_cursor: str | None


class LogLine(TypedDict, total=False):
    id: str
    attempt: int
    stream: str
    at: str
    text: str


class LogPage(NamedTuple):
    """Oldest first. `next`: what to go on `after`. `truncated`: `dropped_bytes` of older output are no longer kept."""

    items: list[LogLine]
    next: str | None
    truncated: bool
    dropped_bytes: int


class Queues(TypedDict, total=False):
    """What waits, runs and died. `items`: a dict each, those with most waiting first; `tenant`: who asks."""

    items: list[dict[str, Any]]
    more_queues: int
    tenant: dict[str, Any]


class KeyOptions(TypedDict, total=False):
    """What a new key may be given: `rate_per_s` and `burst` of submissions, `streams` at once, `expires_in_s`."""

    tenant: str
    rate_per_s: float
    burst: int
    streams: int
    expires_in_s: int


class ApiKey(TypedDict, total=False):
    """An API key without itself. `hint`: its last four characters; None: no limit, no end, not used."""

    id: str
    name: str
    hint: str
    tenant: str
    scopes: list[str]
    rate_per_s: float | None
    burst: int | None
    streams: int | None
    created_at: str
    expires_at: str | None
    replaced_by: str | None
    last_used_at: str | None


class NewApiKey(ApiKey, total=False):
    """With the key, which is shown this once."""

    key: str


class StreamToken(TypedDict):
    """For `?token=` of a task's events, in browsers."""

    token: str
    expires_at: str


class Stack(TypedDict, total=False):
    """Where a task is. `source`: who told, `loop` or `faulthandler`; `threads`: each with its `frames`.

    `threads` and `text` None: there is no stack, and `reason` says why.
    """

    task_id: str
    attempt: int
    worker: str
    taken_at: str
    source: str | None
    shared: bool
    threads: list[dict[str, Any]] | None
    text: str | None
    reason: str | None


class Event(NamedTuple):
    """`name`: snapshot, status, progress, log, custom, gap, gone, end, …; more may come.

    `id`: its own or the last before it, where to resume. `task_id`: "" for a gap that may be in any task's events.
    """

    id: str
    name: str
    data: dict[str, Any]
    task_id: str

    def content(self) -> dict[str, Any]:
        """Its data without what those of every event say: whose it is, and where in its order."""
        return {name: value for name, value in self.data.items() if name not in ("seq", "task_id")}

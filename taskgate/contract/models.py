"""What crosses the store: submissions going in, claims and reports of workers, records read back.

`array_like` structs travel to the scripts as msgpack arrays: field order is their layout there. Times are Unix
milliseconds by Redis' clock, 0 where there is none; JSON stays the bytes it was.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from taskgate.contract.states import Health, Status

NEIGHBOUR_LIMIT = 3
"""So often an async task is handed back uncounted because its child died of another one; after that it runs alone."""


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What never changes after submission; the record's `spec` field, as JSON."""

    id: str
    type: str
    queue: str = "default"
    tenant: str = "default"
    priority: int = 5
    timeout_s: float = 3600.0
    max_attempts: int = 3
    schema: str = ""
    """Hash of the payload schema it was accepted under."""
    deadline_s: float | None = None
    delay_ms: int = 0
    run_at_ms: int = 0
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """JSON object of the client's."""
    unique_key: str = ""
    concurrency_key: str = ""
    request_id: str = ""
    parent: str = ""
    """Id of the task whose handler submitted this one."""
    traceparent: str = ""
    """What its submission was part of, where that is known (W3C trace context)."""
    tracestate: str = ""


class Submission(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One task to accept. Layout: prelude/records.lua `create`, `accept`."""

    id: str
    queue: str
    type: str
    tenant: str
    priority: int
    spec: bytes
    payload: bytes
    delay_ms: int = 0
    """Start that long after submission; with `run_at_ms` 0."""
    run_at_ms: int = 0
    deadline_ms: int = 0
    """Give up if not started that long after submission. 0: never."""
    idempotency_key: str = ""
    """Hash of route and key; "" for none."""
    fingerprint: str = ""
    unique_key: str = ""
    """Hash of the unique key, "" for none; one live task of a tenant may have it."""
    on_conflict: str = "return"
    """What happens while another has it: `return` that one, `replace` it while it waits, or `refuse`."""
    concurrency_key: str = ""
    """Hash of the concurrency key, "" for none."""
    concurrency: int = 1
    """So many tasks of the same tenant, type and concurrency key run at a time."""
    key_rate: str = ""
    """`<id> <per s> <burst>` of the API key that submits it, "" where that has no rate."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What may wait in one queue, all tenants together. Layout: prelude/admission.lua `bound_of`, after the name."""

    tasks: int = 100_000
    bytes: int = 256 * 1024 * 1024
    wait_ms: int = 0
    """Expected time for what is queued to leave. 0: any."""
    on_full: str = "refuse"
    """`refuse`; `spill` into dead letters, as far as there is room for them; `wait`: refused without a place in the
    virtual row, since its caller looks again."""
    spill_tasks: int = 0
    spill_bytes: int = 0
    others_first: str = ""
    """The limit for which others wait, so that there is no room for who comes now; "": nobody waits."""

    def share(self, partitions: int) -> "QueueLimits":
        """What one of so many partitions allows."""
        return msgspec.structs.replace(
            self,
            tasks=-(-self.tasks // partitions),
            bytes=-(-self.bytes // partitions),
            spill_tasks=-(-self.spill_tasks // partitions),
            spill_bytes=-(-self.spill_bytes // partitions),
        )


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What of one tenant may wait, in all queues, and come. 0: any. Layout: `bound_of`, `rate_of`."""

    tasks: int = 0
    bytes: int = 0
    wait_ms: int = 0
    rate_per_s: float = 0.0
    burst: int = 1

    def share(self, partitions: int) -> "TenantLimits":
        return msgspec.structs.replace(
            self,
            tasks=-(-self.tasks // partitions),
            bytes=-(-self.bytes // partitions),
            rate_per_s=self.rate_per_s / partitions,
            burst=-(-self.burst // partitions),
        )


UNLIMITED = TenantLimits()


class Limits(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What admission goes by: `queue` and `tenant` are for those that are not named."""

    queue: QueueLimits = QueueLimits()
    tenant: TenantLimits = UNLIMITED
    queues: dict[str, QueueLimits] = {}
    tenants: dict[str, TenantLimits] = {}

    def of_queue(self, name: str) -> QueueLimits:
        return self.queues.get(name, self.queue)

    def of_tenant(self, name: str) -> TenantLimits:
        return self.tenants.get(name, self.tenant)

    def where_others_wait(self, others_first: str, *, on_full: str) -> "Limits":
        """Of queues where one may wait, the same for who comes later, and does not wait or does (`on_full`)."""

        def of(queue: QueueLimits) -> QueueLimits:
            if queue.on_full != "wait":
                return queue
            return msgspec.structs.replace(queue, on_full=on_full, others_first=others_first)

        queues = {name: of(each) for name, each in self.queues.items()}
        return msgspec.structs.replace(self, queue=of(self.queue), queues=queues)


class Room(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Limits in force for a submission and what is used of them, right after its group; of its partition."""

    queue: QueueLimits
    waiting: int
    waiting_bytes: int
    tenant: TenantLimits = UNLIMITED
    tenant_waiting: int = 0
    tenant_waiting_bytes: int = 0
    rate_left: int = 0
    """Submissions that its rate allows at once."""
    rate_more_ms: int = 0
    """Until it allows one more; 0: no more than `burst`."""


@dataclass(slots=True)
class Accepted:
    """The task is on disk. `replayed`: it was accepted earlier, under the same idempotency key."""

    task_id: str
    replayed: bool
    existing: bool = False
    """It is another one, which has the unique key and has not ended."""
    spilled: bool = False
    """Its queue was full: it is a dead letter."""
    room: Room | None = field(default=None, compare=False, repr=False)


class Claimed(msgspec.Struct, frozen=True):
    """A task that this supervisor owns until it finishes it, hands it back or loses its lease."""

    partition: int
    epoch: int
    attempt: int
    created_ms: int
    claimed_ms: int
    spec: TaskSpec
    payload: bytes
    checkpoint: bytes
    """JSON the handler wrote in an earlier attempt; empty if none."""
    neighbours: int = 0
    """How often it was handed back because its child died of another task; from NEIGHBOUR_LIMIT on it runs alone."""

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def queue_wait_ms(self) -> int | None:
        """From when it could first be claimed; None where it was claimed before, or ran into a redrive."""
        if self.epoch != 1:
            return None
        return self.claimed_ms - max(self.created_ms + self.spec.delay_ms, self.spec.run_at_ms)


class Taken(list[Claimed]):
    """What a claim took."""

    fresh_waits: bool = False
    """Tasks that need a fresh process wait, and there was none for them."""


class Served(NamedTuple):
    """A task type a supervisor can run."""

    queue: str
    type: str
    kind: str
    """`sync`, `fresh` or `async`: which free slots it may use."""
    concurrency: int = 0
    """So many of its tasks run at a time; 0: no limit."""


class Held(NamedTuple):
    """A claim as the beat names it."""

    task_id: str
    epoch: int


class Lost(NamedTuple):
    """An attempt that ended with its supervisor, and what became of its task."""

    spec: TaskSpec
    attempt: int
    status: str


class Reaped(NamedTuple):
    """What one call ended."""

    remaining: int
    """So many are still held by the dead one."""
    ended: list[Lost]


class BeatValue(NamedTuple):
    """What `beats` holds of a supervisor: its counter and the lease that it published."""

    counter: int
    lease_ms: int


class BeatAnswer(NamedTuple):
    counter: int
    lost: list[Held]
    """Named, but not ours any more."""
    unknown: list[Held]
    """Ours, but not named."""
    canceling: list[str]
    next_due_ms: int
    """When the next scheduled, retrying or deadlined task needs a promote; 0: none."""
    now_ms: int
    claimable: bool
    """Something that this supervisor serves waits in a lane."""
    suspects: bool
    """So does something that must run alone."""
    beats: dict[str, BeatValue]
    """Every supervisor's last beat, for the watch on silent ones."""


class Report(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a running attempt shows: only what changed, "" otherwise. Layout: scripts/report.lua."""

    id: str
    epoch: int
    number: int
    """Grows with every report of an attempt, so that a repeated one is known."""
    progress: bytes = b""
    """JSON object: attempt, current, total, percent, unit, stage, message, at_ms; base and base_ms of a resumed one."""
    effort: bytes = b""
    """JSON object: queue_wait_ms, cpu_ms, cpu_wait_ms, gc_pause_ms, rss_bytes, rss_peak_bytes, shared."""
    health: str = ""
    checkpoint: bytes = b""
    events: list[tuple[str, bytes]] = []
    """(name, JSON object) for the task's stream."""
    logs: list[tuple[bytes, int]] = []
    """(JSON object attempt, stream, at, text, …; bytes of its text) for the task's logs."""
    logs_lost: int = 0
    """Bytes of output that were dropped before."""
    stage: str = ""
    """What it waits for, or the service does with it beside running its handler, as `<epoch>:<words>`."""


class Finish(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The end of an attempt. Layout: scripts/finish.lua."""

    id: str
    epoch: int
    outcome: str
    """`succeeded`, `failed` (final), `retry` (fails at `max_attempts` all the same) or `canceled`."""
    result: bytes = b""
    error: bytes = b""
    """JSON object: kind, message, type, traceback, exit_code, signal, …"""
    retry_delay_ms: int = 0
    progress: bytes = b""
    effort: bytes = b""
    max_attempts: int = 1
    retention_ms: int = 86_400_000
    dead_retention_ms: int = 604_800_000
    submitted: list[Submission] = []
    """Tasks that the handler submitted; accepted together with a success."""


class HandBack(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A claim given up without an end, uncounted: queued again with its old score. Layout: scripts/hand_back.lua."""

    id: str
    epoch: int
    delay_ms: int = 0
    ran: bool = True
    """Whether a child had received it: only then is its start deadline met."""
    reason: str = ""
    """For the task's events: `drain`, `taken_back`, `schema`, `unknown`, `deadline`, and two that count towards running
    alone: `neighbour` (its child died of another task), `suspect` (nobody knows of which)."""
    retention_ms: int = 86_400_000


WAITS_FOR_A_WORKER = "waiting for a worker"
WAITS_FOR_A_LIMIT = {
    "key": "waiting for its concurrency key",
    "tenant": "waiting for its tenant's limit",
    "type": "waiting for its type's limit",
}
"""By TaskRecord.barred."""
_STAGES = {
    Status.SCHEDULED: "waiting for its start time",
    Status.RETRYING: "waiting for the next attempt",
    Status.CANCELING: "stopping",
}


_KIND = re.compile(rb'"kind":"(\w*)"')
"""As page.lua finds it: inside a text its quotes would be escaped."""


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot of a task: its mutable fields and its spec; never the payload, the result only where asked."""

    spec: TaskSpec
    status: Status
    version: int
    attempt: int
    epoch: int
    worker: str
    created_ms: int
    started_ms: int
    """Start of the current or last attempt (its claim)."""
    finished_ms: int
    due_ms: int
    """scheduled: its start; retrying: its next attempt."""
    deadline_ms: int
    purge_ms: int
    progress: bytes
    effort: bytes
    error: bytes
    health: str
    stage: str = ""
    """What the handler waits for, or the service does beside running it; "": nothing, or nothing that lasts.
    Of a queued task, what it waits for, where a gateway has found out."""
    alive_ms: int | None
    """How long it still counts as alive without another beat; None when it does not, or is not running."""
    lease_ms: int
    """The lease that its supervisor published; 0 when not running."""
    position: int | None
    """Tasks of the same tenant, type and queue before it; None when not queued, or not ready."""
    barred: str = ""
    """Which limit keeps it, where it is queued: `key` (of its concurrency key), `tenant` or `type`."""
    now_ms: int
    has_result: bool
    result: bytes | None = None
    """None when not asked for, or there is none."""

    @property
    def id(self) -> str:
        return self.spec.id

    def error_kind(self) -> str | None:
        found = _KIND.search(self.error)
        return found and found[1].decode()

    def seen_stage(self) -> str | None:
        """What the task waits for, or the service does with it; None while its handler works, and when it has ended."""
        if self.status is Status.RUNNING:
            return "waiting to be taken over" if self.alive_ms is None else self.stage or None
        if self.status is Status.QUEUED:
            return self.stage or WAITS_FOR_A_WORKER
        return _STAGES.get(self.status)

    def seen_health(self) -> str | None:
        """Health with the one verdict that readers reach themselves: no sign of life for a lease is `lost`."""
        if self.status not in (Status.RUNNING, Status.CANCELING):
            return None
        if self.alive_ms is None:
            return Health.LOST
        return None if self.health in ("", "unknown") else self.health


class Pace(NamedTuple):
    """How fast a queue moves, and who shares it."""

    now_ms: int
    since_ms: int | None
    """When the window began in which `left` tasks have left it."""
    left: int
    per_s: float | None
    """Of the windows before; None: there was none."""
    waiting: int
    lanes: int
    """Types that have tasks there."""
    tenants: int
    """Who have tasks of the type there."""
    names: tuple[str, ...] = ()
    """Some of them, where they were asked for."""

    def leaving_per_s(self) -> float | None:
        """Also while it stands still, as admission reckons; None: nothing has been measured yet."""
        if self.since_ms is None:
            return self.per_s
        span_ms = self.now_ms - self.since_ms
        seen = (self.left + 1) * 1000 / max(1000, span_ms)
        if self.per_s is None:
            return seen if self.left and span_ms >= 1000 else None
        return min(self.per_s, seen) if span_ms > 2000 else self.per_s


class QueueLook(NamedTuple):
    """What stands in a queue of one partition, as far as one call looks."""

    dead: int
    oldest_ms: int | None
    """Creation of the oldest ready task that was found."""
    oldest_sure: bool
    """No queued one is older."""
    beyond: dict[str, int]
    """Lane types that have queued tasks, and how many tenants of theirs were not looked at."""
    ready: list[tuple[str, str, int]]
    """Lane type, tenant and how many of its tasks could start now, were it their turn and within every limit."""


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An unsuccessful attempt, as prelude/finals.lua `remember` keeps it."""

    attempt: int
    started_ms: int
    finished_ms: int
    worker: str
    redriven_ms: int = 0
    """When the redrive was that this attempt came of; 0: none."""
    error: msgspec.Raw
    """JSON object as in Finish, or null."""
    effort: msgspec.Raw


class History(NamedTuple):
    """A task with its unsuccessful attempts before the last one, oldest first."""

    record: TaskRecord
    attempts: list[PastAttempt]
    lost: int
    """So many older ones are no longer kept."""
    redriven_ms: int
    """When the last redrive was; 0: there was none."""


class Mark(NamedTuple):
    """A point in a tenant's list: right behind the task of that time (creation, or end) and id."""

    at_ms: int | None = None
    """None: before the first."""
    id: str = ""
    """ "" is smaller than any: newest first it comes behind all of its millisecond's, oldest first before them."""


class Page(NamedTuple):
    """What a look at a part of a tenant's list found."""

    ids: list[str]
    scanned: int
    last: Mark | None
    """The last that was looked at; None when no others follow."""


class Event(NamedTuple):
    """One entry of a task's stream."""

    id: str
    """Redis stream id: `<ms>-<n>`."""
    name: str
    """`status`, `progress`, `stopping`, `killed`, `stalled`, `skipped` (a submission of its own, for a unique
    key's sake), or `custom` (the handler's own name is in the data)."""
    seq: int
    """The task's version when it was written."""
    data: bytes
    """JSON object."""


def position(event_id: str) -> tuple[int, int]:
    """Stream ids in their order."""
    ms, _, n = event_id.partition("-")
    return int(ms), int(n)


class EventPage(NamedTuple):
    """Events of a task after some id, oldest first. `whole`: there were no more."""

    events: list[Event]
    whole: bool


class Kept(NamedTuple):
    """What is there of a task's events. `last`: id of the newest; None: there are none."""

    last: str | None
    since: str | None
    """From this id on nothing was dropped; None: nothing ever was."""

    def lacks(self, after: tuple[int, int]) -> bool:
        """Whether some that followed that position may be missing."""
        return self.since is not None and position(self.since) > after


class TypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor publishes about a task type, under its name and schema hash."""

    type: str
    schema_hash: str
    kind: str
    queue: str
    schema: msgspec.Raw
    """JSON schema of the payload."""
    timeout_s: float
    max_attempts: int
    description: str = ""
    memory_limit_mb: int | None = None
    concurrency: int | None = None
    """So many of its tasks run at a time; None: no limit of its own."""
    concurrency_per_key: int = 1
    """So many tasks of the same tenant and concurrency key run at a time."""
    published_ms: int = 0


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor says of itself at every beat; `GET /workers`."""

    id: str
    host: str
    pid: int
    started_ms: int
    lease_ms: int
    queues: list[str]
    types: list[str]
    """`<type>:<schema hash>`"""
    state: str
    """`starting`, `ready`, `draining`"""
    children: list[dict[str, object]]
    """pid, kind, state, tasks of each child."""
    wanted_children: int
    guard: str
    """`ok` or `down`"""
    stale_writes: int = 0
    """Attempts that turned out to be another's: a write was refused, or a beat was told so."""
    left_behind: dict[str, int] = {}
    """By task type: how often something of it was found in its process that no task may leave to the next."""
    run_ms: dict[str, int] = {}
    """By task type: how long a successful run usually takes."""
    slots: dict[str, int] = {}
    """By task type: how many of it run here at a time; of those whose runs are known and need no start of a process."""
    beat_ms: int = 0
    """When its record was written last, by Redis' clock."""

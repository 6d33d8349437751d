"""The 202: what it says of a task that has just been written, made without reading it back."""

import functools

import msgspec

from app import view
from app.reply import JSON, Headers, Reply, length
from taskgate.contract import ids
from taskgate.contract.models import Submission, TaskRecord, TaskSpec
from taskgate.contract.states import Status

REPLAYED = (b"idempotent-replayed", b"true")
EXISTING = (b"unique-existing", b"true")
NO_METADATA = msgspec.UNSET
"""Left out of the record."""

_RETRY_AFTER = (b"retry-after", b"%d" % -(-view.POLL_MIN_MS // 1000))
_ANY_MS = 1_800_000_000_000
_ANY_TIME = view.encode(view.at(_ANY_MS))
_ANY_ID = "{id}"
"""Not a possible name, so that nothing else in the JSON can be it."""


def reply(task_id: str, body: bytes, *more: tuple[bytes, bytes], status: int = 202, ended: bool = False) -> Reply:
    """`ended`, and 200: nobody need come again."""
    name = task_id.encode()
    path = b"/tasks/" + name
    headers: Headers = [
        JSON,
        length(body),
        (b"location", path),
        (b"operation-location", path),
        (b"x-task-id", name),
        *more,
    ]
    if status == 202 and not ended:
        headers.append(_RETRY_AFTER)
    return Reply(status, headers, body)


def task_json(submission: Submission, spec: TaskSpec) -> bytes:
    """The task as Redis has just written it, but for its clock: the times here are the gateway's."""
    plain = not (submission.delay_ms or submission.run_at_ms or submission.deadline_ms)
    if not plain or spec.metadata is not NO_METADATA or spec.unique_key or spec.concurrency_key:
        return view.task_json(_new(submission, spec))
    shape = _shape(spec.type, spec.queue, spec.priority, spec.timeout_s, spec.max_attempts)
    named = spec.id.encode().join(shape)
    return named.replace(_ANY_TIME, _time(ids.made_at_ms(spec.id)))


@functools.lru_cache(1024)
def _shape(task_type: str, queue: str, priority: int, timeout_s: float, max_attempts: int) -> list[bytes]:
    """The JSON of a plain new task with another's time in it, cut where its id goes: most differ in nothing else."""
    spec = TaskSpec(
        id=_ANY_ID,
        type=task_type,
        queue=queue,
        priority=priority,
        timeout_s=timeout_s,
        max_attempts=max_attempts,
        metadata=NO_METADATA,
    )
    return view.task_json(_record(spec, created_ms=_ANY_MS, now_ms=_ANY_MS)).split(_ANY_ID.encode())


@functools.lru_cache(4)
def _time(unix_ms: int) -> bytes:
    """Many are accepted in one millisecond."""
    return view.encode(view.at(unix_ms))


def _new(submission: Submission, spec: TaskSpec) -> TaskRecord:
    created_ms = ids.made_at_ms(submission.id)
    start_ms = max(created_ms + submission.delay_ms, submission.run_at_ms)
    return _record(
        spec,
        created_ms=created_ms,
        now_ms=created_ms,
        due_ms=start_ms if start_ms > created_ms else 0,
        deadline_ms=created_ms + submission.deadline_ms if submission.deadline_ms else 0,
    )


def _record(spec: TaskSpec, *, created_ms: int, now_ms: int, due_ms: int = 0, deadline_ms: int = 0) -> TaskRecord:
    return TaskRecord(
        spec=spec,
        status=Status.SCHEDULED if due_ms else Status.QUEUED,
        version=1,
        attempt=0,
        epoch=0,
        worker="",
        created_ms=created_ms,
        started_ms=0,
        finished_ms=0,
        due_ms=due_ms,
        deadline_ms=deadline_ms,
        purge_ms=0,
        progress=b"",
        effort=b"",
        error=b"",
        health="",
        alive_ms=None,
        lease_ms=0,
        position=None,
        now_ms=now_ms,
        has_result=False,
    )

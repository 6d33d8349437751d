"""`POST /tasks`: check, admit, keep. The 202 leaves when the task is on disk."""

import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

import msgspec

from app import envelope
from app.errors import Problem, problem_of
from app.reply import JSON, NO_STORE, Caller, Headers, Reply, length
from app.status import Snapshots
from app.types import TypeRegistry
from app.view import task_json
from taskgate.contract import ids
from taskgate.contract.errors import IdempotencyConflict, QueueFull, TaskgateError
from taskgate.contract.group import Group
from taskgate.contract.models import Accepted, Limits, Submission, TaskRecord, TaskSpec
from taskgate.contract.states import Status
from taskgate.contract.store import Store

Outcome = Accepted | QueueFull | IdempotencyConflict

_RETRY_AFTER = (b"retry-after", b"1")
_REPLAYED = (b"idempotent-replayed", b"true")
_NO_METADATA = TaskSpec(id="", type="").metadata
"""The very default: the encoder leaves out nothing else."""

_spec_json = msgspec.json.Encoder().encode


class SubmitEndpoint:
    """The hot `POST /tasks`, as plain ASGI behind the door."""

    def __init__(self, store: Store, *, types: TypeRegistry, snapshots: Snapshots, limits: Limits) -> None:
        self._types = types
        self._snapshots = snapshots
        self._store = store
        self._groups = [Group(_submitter(store, limits), size=_size) for _ in store.partitions]

    async def __call__(self, body: bytes, caller: Caller, headers: dict[bytes, bytes]) -> Reply:
        media_type = headers.get(b"content-type", b"")
        if not is_json(media_type):
            raise Problem("unsupported-media-type")
        key = headers.get(b"idempotency-key")
        task = envelope.parse(body)
        payload = bytes(task.payload)
        info = await self._types.accept(task.type, envelope.value_of(payload))
        idempotency = "" if key is None else _key(key)
        task_id = ids.new_task_id(ids.partition_byte(caller.tenant, idempotency) if idempotency else None)
        spec = TaskSpec(
            id=task_id,
            type=task.type,
            queue=task.queue or info.queue,
            tenant=caller.tenant,
            priority=task.priority,
            timeout_s=task.timeout_s or info.timeout_s,
            max_attempts=task.max_attempts or info.max_attempts,
            schema=info.schema_hash,
            deadline_s=task.deadline_s,
            metadata=task.metadata if bytes(task.metadata) else _NO_METADATA,
            request_id=caller.request_id,
        )
        submission = Submission(
            id=task_id,
            queue=spec.queue,
            type=spec.type,
            tenant=spec.tenant,
            priority=spec.priority,
            spec=_spec_json(spec),
            payload=payload,
            delay_ms=round(task.delay_s * 1000) if task.delay_s else 0,
            run_at_ms=round(task.run_at.timestamp() * 1000) if task.run_at else 0,
            deadline_ms=round(task.deadline_s * 1000) if task.deadline_s else 0,
            idempotency_key=idempotency,
            fingerprint=sha256(media_type + b"\0" + body).hexdigest() if idempotency else "",
        )
        try:
            outcome = await self._groups[self._store.partition_of(task_id)](submission)
        except TaskgateError as error:
            raise problem_of(error, task_id=task_id) from error
        if not isinstance(outcome, Accepted):
            raise problem_of(outcome)
        if outcome.replayed:
            replayed = await self._snapshots.fresh(outcome.task_id, caller.tenant)
            return _accepted(outcome.task_id, replayed.body, _REPLAYED)
        return _accepted(task_id, task_json(_new(submission, spec)))


def _accepted(task_id: str, body: bytes, *more: tuple[bytes, bytes]) -> Reply:
    name = task_id.encode()
    path = b"/tasks/" + name
    headers: Headers = [
        JSON,
        length(body),
        NO_STORE,
        (b"location", path),
        (b"operation-location", path),
        _RETRY_AFTER,
        (b"x-task-id", name),
        *more,
    ]
    return Reply(202, headers, body)


def _new(submission: Submission, spec: TaskSpec) -> TaskRecord:
    """What Redis has just written, but for its clock: the times here are the gateway's."""
    now_ms = time.time_ns() // 1_000_000
    created_ms = ids.made_at_ms(submission.id)
    start_ms = max(now_ms + submission.delay_ms, submission.run_at_ms)
    scheduled = start_ms > now_ms
    return TaskRecord(
        spec=spec,
        status=Status.SCHEDULED if scheduled else Status.QUEUED,
        version=1,
        attempt=0,
        epoch=0,
        worker="",
        created_ms=created_ms,
        started_ms=0,
        finished_ms=0,
        due_ms=start_ms if scheduled else 0,
        deadline_ms=created_ms + submission.deadline_ms if submission.deadline_ms else 0,
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


def _submitter(store: Store, limits: Limits) -> Callable[[Sequence[Submission]], Awaitable[Sequence[Outcome]]]:
    return functools.partial(store.submit, limits=limits)


def _size(submission: Submission) -> int:
    return len(submission.payload) + len(submission.spec)


@functools.lru_cache(64)
def is_json(media_type: bytes) -> bool:
    """`application/json` or a `+json` type, in UTF-8, which is all that JSON has."""
    name, *parameters = media_type.lower().split(b";")
    kind, _, sub = name.strip().partition(b"/")
    charsets = [one.partition(b"=")[2].strip(b' "') for one in parameters if one.strip().startswith(b"charset")]
    is_one = name.strip() == b"application/json" or (kind == b"application" and sub.endswith(b"+json"))
    return is_one and all(charset in (b"utf-8", b"utf8") for charset in charsets)


def _key(header: bytes) -> str:
    """The hash that an idempotency key is known by; quoted and bare spellings are the same key."""
    key = header.strip()
    if len(key) >= 2 and key[:1] == key[-1:] == b'"':
        key = key[1:-1]
    if not 1 <= len(key) <= 255 or not all(0x20 <= byte < 0x7F for byte in key):
        raise Problem("idempotency-key-invalid")
    return sha256(b"POST /tasks\0" + key).hexdigest()

"""`POST /tasks`: check, admit, keep. The 202 leaves when the task is on disk."""

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

import msgspec
from starlette.types import Receive

from app import accepted, envelope, rate_limits, waiters, waiting
from app.access import unauthorized
from app.errors import Problem, problem_of
from app.grants import Grant
from app.hub import Hub
from app.metrics import Metrics
from app.reply import Caller, Reply
from app.snapshots import Snapshot
from app.traces import RequestTraces, sending
from app.types import TypeRegistry
from taskgate.contract import ids
from taskgate.contract.errors import IdempotencyConflict, OutcomeUnknown, Refused, TaskgateError, UniqueConflict
from taskgate.contract.group import Group
from taskgate.contract.limits import milliseconds
from taskgate.contract.models import Accepted, Limits, Submission, TaskSpec, TypeInfo
from taskgate.contract.store import Store
from taskgate.policy import Policy
from taskgate.tracing import NO_CONTEXT, context_in

Outcome = Accepted | Refused | IdempotencyConflict | UniqueConflict

ANSWER_WITHIN_S = 4.0
"""Longer than one call may take; but a slow one may be behind another, and each of its steps be slow by itself."""

LARGE_BYTES = 65_536
"""From here on bodies are checked one by one, so that others get their turn in between."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9a-z-]++"
_PARAMETER = re.compile(rb'(%b)=(%b|"(?:[^"\\]|\\.)*+")' % (_TOKEN, _TOKEN))
_JSON_TYPE = re.compile(
    rb"application/(?:[0-9a-z][!#$&^_.0-9a-z-]*\+)*json((?:[ \t]*+;[ \t]*+(?:%b)?+)*+)" % _PARAMETER.pattern
)
"""As RFC 9110 and 6838 write it, in small letters."""

_spec_json = msgspec.json.Encoder().encode


class SubmitEndpoint:
    """The hot `POST /tasks`, as plain ASGI behind the door."""

    def __init__(
        self,
        store: Store,
        *,
        types: TypeRegistry,
        hub: Hub,
        limits: Limits,
        policy: Policy,
        metrics: Metrics,
        traces: RequestTraces | None = None,
    ) -> None:
        self._types = types
        self._hub = hub
        self._store = store
        self._large = asyncio.Lock()
        self._policy = policy
        self._metrics = metrics
        self._traces = traces
        self._groups = {
            limit: _groups(store, limits.where_others_wait(limit, on_full="refuse"))
            for limit in ("", "queue-tasks", "queue-bytes", "queue-wait")
        }
        """By the limit that others wait for."""
        behind = _groups(store, limits.where_others_wait("queue-tasks", on_full="wait"))
        self._waiters = waiters.Waiters(_groups(store, limits), behind) if policy.lets_wait else None

    async def __call__(self, body: bytes, caller: Caller, headers: dict[bytes, bytes], receive: Receive) -> Reply:
        media_type = headers.get(b"content-type", b"")
        if not is_json(media_type):
            raise Problem("unsupported-media-type")
        key = headers.get(b"idempotency-key")
        if len(body) < LARGE_BYTES:
            task, payload, info = await self._checked(body)
        else:
            async with self._large:
                task, payload, info = await self._checked(body)
        idempotency = "" if key is None else _key(key)
        unique = "" if task.unique_key is None else ids.key_hash(task.unique_key)
        concurrency = "" if task.concurrency_key is None else ids.key_hash(task.concurrency_key)
        together = unique or concurrency or idempotency
        task_id = ids.new_task_id(ids.partition_byte(caller.tenant, together) if together else None)
        queue = task.queue or info.queue
        trace, span = NO_CONTEXT, None
        if self._traces is not None:
            span, trace = self._traces.send(task_id, queue=queue, task_type=task.type, size=len(payload))
        elif b"traceparent" in headers:
            trace = context_in(headers)
        spec = TaskSpec(
            id=task_id,
            type=task.type,
            queue=queue,
            tenant=caller.tenant,
            priority=task.priority,
            timeout_s=task.timeout_s or info.timeout_s,
            max_attempts=task.max_attempts or info.max_attempts,
            schema=info.schema_hash,
            deadline_s=task.deadline_s,
            delay_ms=milliseconds(task.delay_s),
            run_at_ms=round(task.run_at.timestamp() * 1000) if task.run_at else 0,
            metadata=task.metadata if bytes(task.metadata) else accepted.NO_METADATA,
            unique_key=task.unique_key or "",
            concurrency_key=task.concurrency_key or "",
            request_id=caller.request_id,
            traceparent=trace.parent,
            tracestate=trace.state,
        )
        submission = Submission(
            id=task_id,
            queue=spec.queue,
            type=spec.type,
            tenant=spec.tenant,
            priority=spec.priority,
            spec=_spec_json(spec),
            payload=payload,
            delay_ms=spec.delay_ms,
            run_at_ms=spec.run_at_ms,
            deadline_ms=milliseconds(task.deadline_s),
            idempotency_key=idempotency,
            fingerprint=sha256(media_type + b"\0" + body).hexdigest() if idempotency else "",
            unique_key=unique,
            on_conflict=task.on_conflict or "return",
            concurrency_key=concurrency,
            concurrency=info.concurrency_per_key,
            key_rate=caller.grant.rate,
        )
        try:
            decided = self._decided(submission, caller.grant, receive)
            outcome = await (decided if span is None else sending(span, decided))
        except TimeoutError:
            raise problem_of(OutcomeUnknown("no answer yet"), task_id=task_id) from None
        except TaskgateError as error:
            raise problem_of(error, task_id=task_id) from error
        if not isinstance(outcome, Accepted):
            raise problem_of(outcome)
        more = [] if outcome.room is None else rate_limits.headers(outcome.room)
        if outcome.replayed or outcome.existing:
            more = [*more, accepted.REPLAYED if outcome.replayed else accepted.EXISTING]
            self._metrics.replayed.add("idempotency_key" if outcome.replayed else "unique_key")
        else:
            self._metrics.accepted(spec.queue, spec.type, own=info.queue)
        if (prefer := headers.get(b"prefer")) is not None and (wait_s := waiting.preferred_s(prefer)):
            seen = await self._watched(outcome.task_id, caller, wait_s, receive)
            if seen is not None and seen.has_ended():
                return accepted.reply(outcome.task_id, seen.body, waiting.applied(wait_s), *more, status=200)
            if seen is not None:
                return accepted.reply(outcome.task_id, seen.body, *more)
        if outcome.replayed or outcome.existing or outcome.spilled:
            if caller.grant.ended:
                raise unauthorized()  # of an earlier task nothing is shown any more
            seen = await self._hub.snapshots.fresh(outcome.task_id, caller.tenant)
            return accepted.reply(outcome.task_id, seen.body, *more, ended=seen.has_ended())
        return accepted.reply(task_id, accepted.task_json(submission, spec), *more)

    async def _decided(self, submission: Submission, grant: Grant, receive: Receive) -> Outcome:
        """Once there was room, where one may wait for it."""
        partition = self._store.partition_of(submission.id)
        others_first = ""
        if self._waiters is not None and (policy := self._policy.queue(submission.queue)).on_full == "wait":
            if self._waiters.has_place(submission):
                wait = self._waiters.admitted(submission, partition, wait_s=policy.wait_ms / 1000)
                if (outcome := await waiting.while_listening(wait, receive, grant)) is not None:
                    return outcome
            others_first = self._waiters.limit(partition, submission.queue)
        return await self._groups[others_first][partition](submission)

    def drain(self) -> None:
        """Nobody waits for room any longer; idempotent."""
        if self._waiters is not None:
            self._waiters.drain()

    async def _watched(self, task_id: str, caller: Caller, wait_s: float, receive: Receive) -> Snapshot | None:
        """The task once it has ended, or after that time. It is accepted: what goes wrong now may not hide that."""
        try:
            return await waiting.until(self._hub, task_id, caller, Snapshot.has_ended, wait_s=wait_s, receive=receive)
        except (TaskgateError, Problem):
            return None

    async def _checked(self, body: bytes) -> tuple[envelope.Envelope, bytes, TypeInfo]:
        task = envelope.parse(body)
        payload = bytes(task.payload)
        return task, payload, await self._types.accept(task.type, envelope.value_of(payload))


def _groups(store: Store, limits: Limits) -> list[Group[Submission, Outcome]]:
    """One for each partition."""
    submit: Callable[[Sequence[Submission]], Awaitable[Sequence[Outcome]]] = functools.partial(
        store.submit, limits=limits
    )
    return [Group(submit, size=_size, within_s=ANSWER_WITHIN_S) for _ in store.partitions]


def _size(submission: Submission) -> int:
    return len(submission.payload) + len(submission.spec)


@functools.lru_cache(64)
def is_json(media_type: bytes) -> bool:
    """`application/json` or a `+json` type, in UTF-8, which is all that JSON has."""
    found = _JSON_TYPE.fullmatch(media_type.lower().strip(b" \t"))
    if found is None:
        return False
    charsets = [value.strip(b'"') for name, value in _PARAMETER.findall(found[1]) if name == b"charset"]
    return all(charset in (b"utf-8", b"utf8") for charset in charsets)


def _key(header: bytes) -> str:
    """The hash that an idempotency key is known by; quoted and bare spellings are the same key."""
    key = header.strip()
    if len(key) >= 2 and key[:1] == key[-1:] == b'"':
        key = key[1:-1]
    if not 1 <= len(key) <= 255 or not all(0x20 <= byte < 0x7F for byte in key):
        raise Problem("idempotency-key-invalid")
    return sha256(b"POST /tasks\0" + key).hexdigest()

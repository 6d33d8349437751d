"""What an attempt's end becomes: the outcome for the store, and the error that says why."""

import signal
from collections.abc import Mapping

import msgspec

from taskgate.contract.ids import key_hash
from taskgate.contract.limits import milliseconds
from taskgate.contract.models import Finish, Submission, TaskSpec, TypeInfo
from taskgate.contract.states import ErrorKind
from taskgate.tracing import TraceContext
from workers import retry
from workers.children import ChildProcess, Exit, StopReason
from workers.failures import error_json, timeout_message
from workers.holdings import Holding
from workers.wire import Done, HandlerInfo, Submitted

_json = msgspec.json.encode


def stopping_event(reason: StopReason, grace_s: float) -> tuple[str, bytes]:
    """The soft signal, for the task's events."""
    return "stopping", _json({"signal": "SIGUSR1", "reason": reason.name.lower(), "grace_s": grace_s})


def killed_event(reason: str) -> tuple[str, bytes]:
    """The hard signal."""
    return "killed", _json({"signal": "SIGKILL", "reason": reason})


def is_invalid(done: Done) -> bool:
    """Whether the payload did not fit the child's schema."""
    return done.outcome == "failed" and kind_of(done.error) == ErrorKind.INVALID_PAYLOAD


def kind_of(error: bytes) -> str:
    """Of an error as the record keeps it."""
    return msgspec.json.decode(error, type=_Kind).kind


class _Kind(msgspec.Struct):
    kind: str


def cause_of_death(
    holding: Holding, child: ChildProcess, how: Exit, *, oom: bool, lease: bool
) -> tuple[ErrorKind, str]:
    """Kind and message. `oom`: the kernel has just killed for want of memory; `lease`: the guard holds the groups."""
    by_us, by_kill = child.killed and how.signal == signal.SIGKILL, how.signal == signal.SIGKILL
    if by_us and holding.killed_as == ErrorKind.MEMORY:
        return ErrorKind.MEMORY, "the task passed its memory limit"
    if by_us and holding.killed_as == ErrorKind.TIMEOUT:
        return ErrorKind.TIMEOUT, "blocked the event loop of its child, so that other tasks could not be stopped"
    if holding.stop is StopReason.TIMEOUT:
        rest = "and did not stop when asked" if by_us else f"and when asked to stop {_how(how)}"
        return ErrorKind.TIMEOUT, f"{timeout_message(holding.task.spec.timeout_s)} {rest}"
    if by_us:
        return ErrorKind.CRASH, "its child was killed"
    if child.garbage:
        return ErrorKind.CRASH, f"the child sent what is no message, and was killed: {child.garbage}"
    if by_kill and lease:
        return ErrorKind.LEASE, "the lease could not be confirmed for too long, and the guard killed the child"
    if by_kill and oom:
        return ErrorKind.MEMORY, "the kernel killed the child: out of memory"
    return ErrorKind.CRASH, f"the child {_how(how)}"


def _how(how: Exit) -> str:
    if how.signal is not None:
        return f"was killed by {signal_name(how.signal)}"
    return f"exited with code {how.code}"


def signal_name(number: int) -> str:
    """Real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def with_stack(error: bytes, stack: str) -> bytes:
    """A child's own error, and where the task was; `stack` "" is not known."""
    return _json(msgspec.json.decode(error) | {"stack": stack}) if stack else error


def after_death(holding: Holding, how: Exit, *, kind: ErrorKind, message: str, pid: int, stack: str) -> bytes:
    """The error of an attempt whose child died under it."""
    more: dict[str, object] = {
        "exit_code": how.code,
        "signal": None if how.signal is None else signal_name(how.signal),
        "pid": pid,
        "rss_peak_bytes": max(how.rss_peak_bytes or 0, holding.rss_peak) or None,
    }
    if stack:
        more["stack"] = stack
    return error_json(kind, message, attempt=holding.task.attempt, **more)


def retry_delay_ms(handler: HandlerInfo | None, attempt: int, asked_s: float | None) -> int:
    """What the handler asked for, else the backoff of its type."""
    if asked_s is None:
        base_s, max_s = (handler.retry_base_s, handler.retry_max_s) if handler else (1.0, 300.0)
        asked_s = retry.delay_s(attempt, base_s=base_s, max_s=max_s)
    return milliseconds(asked_s)


def submission(
    child: Submitted, parent: TaskSpec, types: Mapping[str, TypeInfo], *, trace: TraceContext | None = None
) -> Submission:
    """A task that a handler submitted, with its type's defaults; of the same request, and part of `trace`."""
    info = types.get(child.type)
    spec = TaskSpec(
        id=child.id,
        type=child.type,
        queue=child.queue or (info.queue if info else parent.queue),
        tenant=parent.tenant,
        priority=child.priority,
        timeout_s=child.timeout_s or (info.timeout_s if info else parent.timeout_s),
        max_attempts=child.max_attempts or (info.max_attempts if info else parent.max_attempts),
        schema=info.schema_hash if info else "",
        deadline_s=child.deadline_s,
        delay_ms=milliseconds(child.delay_s),
        metadata=msgspec.Raw(child.metadata) if child.metadata else msgspec.UNSET,
        unique_key=child.unique_key or "",
        concurrency_key=child.concurrency_key or "",
        request_id=parent.request_id,
        parent=parent.id,
        traceparent=parent.traceparent if trace is None else trace.parent,
        tracestate=parent.tracestate if trace is None else trace.state,
    )
    return Submission(
        id=spec.id,
        queue=spec.queue,
        type=spec.type,
        tenant=spec.tenant,
        priority=spec.priority,
        spec=_json(spec),
        payload=child.payload,
        delay_ms=spec.delay_ms,
        deadline_ms=milliseconds(child.deadline_s),
        unique_key=key_hash(spec.unique_key),
        on_conflict=child.on_conflict,
        concurrency_key=key_hash(spec.concurrency_key),
        concurrency=info.concurrency_per_key if info else 1,
    )


def outcome_of(done: Done) -> str:
    """`succeeded`, `failed`, `retry` or `canceled` for the store."""
    match done.outcome:
        case "succeeded" | "canceled" | "retry":
            return done.outcome
        case "timeout":
            return "retry"
    return "retry" if done.may_retry else "failed"


def finish(
    holding: Holding,
    outcome: str,
    *,
    handler: HandlerInfo | None,
    retention_ms: int,
    dead_retention_ms: int,
    result: bytes = b"",
    error: bytes = b"",
    retry_after_s: float | None = None,
    progress: bytes = b"",
    effort: bytes = b"",
    submitted: list[Submission] | None = None,
) -> Finish:
    """The item for the store."""
    task = holding.task
    return Finish(
        id=task.id,
        epoch=task.epoch,
        outcome=outcome,
        result=result,
        error=error,
        retry_delay_ms=retry_delay_ms(handler, task.attempt, retry_after_s) if outcome == "retry" else 0,
        progress=progress,
        effort=effort,
        max_attempts=task.spec.max_attempts,
        retention_ms=retention_ms,
        dead_retention_ms=dead_retention_ms,
        submitted=submitted or [],
    )

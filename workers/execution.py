"""Whatever a handler does becomes an outcome; only the death of the process escapes."""

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import ValidationError

from taskgate.attempt import Canceled, Drained, Fail, Retry, Stopped, TimedOut, seconds
from taskgate.contract.limits import MAX_DELAY_S
from taskgate.contract.states import ErrorKind
from taskgate.handlers import Handler
from workers import wire
from workers.attempts import ChildAttempt
from workers.failures import clean, describe, error_json, is_a, message_of, timeout_message
from workers.slot import Progress, StopReason

STOPS: dict[StopReason, type[Stopped]] = {
    StopReason.CANCEL: Canceled,
    StopReason.TIMEOUT: TimedOut,
    StopReason.DRAIN: Drained,
}
_STOPPED = {
    StopReason.CANCEL: ("canceled", ErrorKind.EXCEPTION, "canceled while it was running"),
    StopReason.TIMEOUT: ("timeout", ErrorKind.TIMEOUT, ""),
    StopReason.DRAIN: ("drained", ErrorKind.EXCEPTION, "its worker was stopped"),
}
_SHOWN_ERRORS = 20


class Outcome(NamedTuple):
    """The fields of `wire.Done` that the handler decides."""

    outcome: str
    result: bytes = b""
    error: bytes = b""
    may_retry: bool = False
    retry_after_s: float | None = None


class Call(NamedTuple):
    """A handler with its validated payload."""

    handler: Handler
    payload: Any


def prepare(handler: Handler | None, task_type: str, payload: bytes) -> Call | Outcome:
    """The call to make, or why there is none."""
    if handler is None:
        message = f"no handler for task type {task_type!r} in this worker"
        return Outcome("failed", error=error_json(ErrorKind.UNKNOWN_TYPE, message))
    try:
        return Call(handler, handler.read(payload))
    except ValidationError as error:
        return Outcome("failed", error=_mismatch(ErrorKind.INVALID_PAYLOAD, "the payload does not fit", error))
    except ValueError as error:
        return Outcome("failed", error=error_json(ErrorKind.INVALID_PAYLOAD, message_of(error)))
    except BaseException as error:  # noqa: BLE001 — validators are the handler's code too
        return Outcome("failed", error=describe(error, ErrorKind.INVALID_PAYLOAD))


def succeeded(handler: Handler, result: Any, result_max_bytes: int) -> Outcome:
    """A result that is none fails the task, and only that."""
    try:
        raw = handler.dump(result)
    except ValidationError as error:
        return Outcome("failed", error=_mismatch(ErrorKind.RESULT, "the result does not fit", error))
    except BaseException as error:  # noqa: BLE001 — serialisers may be the handler's own code
        message = f"the result cannot be sent as JSON: {message_of(error)}"
        return Outcome("failed", error=error_json(ErrorKind.RESULT, message))
    if len(raw) > result_max_bytes:
        message = f"the result has {len(raw)} bytes of JSON, at most {result_max_bytes} are allowed"
        return Outcome("failed", error=error_json(ErrorKind.RESULT, message))
    return Outcome("succeeded", result=raw)


def failed(handler: Handler, error: BaseException, attempt: ChildAttempt) -> Outcome:
    """What came out of the handler. After a stop was asked for, only Retry and Fail say more than that."""
    if is_a(error, Retry):
        return Outcome("retry", error=describe(error), may_retry=True, retry_after_s=_asked_s(error))
    if is_a(error, Fail):
        return Outcome("failed", error=describe(error))
    if attempt.stop_reason is not None:
        return stopped(attempt.stop_reason, attempt, error)
    return Outcome("failed", error=describe(error), may_retry=is_a(error, handler.options.retry_on))


def _asked_s(error: Retry) -> float | None:
    """What a Retry asks for; one that the handler has tampered with asks for nothing."""
    try:
        return None if error.after_s is None else seconds("after_s", error.after_s, MAX_DELAY_S)
    except BaseException:  # noqa: BLE001 — a subclass of the handler's
        return None


def stopped(reason: StopReason, attempt: ChildAttempt, error: BaseException | None = None) -> Outcome:
    """The attempt ended because it was asked to; `error` shows where it was."""
    outcome, kind, message = _STOPPED[reason]
    message = message or timeout_message(attempt.timeout_s)
    if error is None:
        return Outcome(outcome, error=error_json(kind, message))
    own = type(error) in (Canceled, TimedOut, Drained, CancelledError)
    return Outcome(outcome, error=describe(error, kind, message=message if own else None))


def send_done(
    send: Callable[[wire.Message], None],
    *,
    seq: int,
    outcome: Outcome,
    attempt: ChildAttempt,
    progress: Progress | None,
    run_ns: int,
    gc_ns: int,
    cpu_ns: int | None = None,
    left_running: bool = False,
) -> None:
    """Send the end of a task; one that cannot be sent becomes the failure of that task.

    Raises:
        OSError: nobody is there to receive.
    """

    def done(outcome: Outcome, submitted: list[wire.Submitted]) -> wire.Done:
        return wire.Done(
            seq=seq,
            outcome=outcome.outcome,
            result=outcome.result,
            error=outcome.error,
            may_retry=outcome.may_retry,
            retry_after_s=outcome.retry_after_s,
            progress=progress,
            submitted=submitted,
            run_ns=run_ns,
            cpu_ns=cpu_ns,
            gc_ns=gc_ns,
            emitted=attempt.emitted,
            left_running=left_running,
        )

    try:
        send(done(outcome, attempt.submissions() if outcome.outcome == "succeeded" else []))
    except BaseException as error:  # noqa: BLE001 — `submitted` is in the handler's hands
        message = f"the end of the attempt cannot be sent: {message_of(error)}"
        # No memory or descriptors left: trouble of this process, another one may do better.
        may_retry = is_a(error, (OSError, MemoryError))
        send(done(Outcome("failed", error=error_json(ErrorKind.RESULT, message), may_retry=may_retry), []))


def _mismatch(kind: ErrorKind, what: str, error: ValidationError) -> bytes:
    """Where it does not fit, as JSON pointers; never the values, which may be secrets."""
    errors = [
        {"pointer": "#/" + "/".join(str(part) for part in one["loc"]), "detail": clean(one["msg"], 300)}
        for one in error.errors(include_url=False, include_input=False, include_context=False)[:_SHOWN_ERRORS]
    ]
    first = errors[0]
    return error_json(kind, f"{what} at {first['pointer']}: {first['detail']}", errors=errors)

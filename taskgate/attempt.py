"""What a handler is given beside its payload, and what it may raise.

Exception
├── Retry        run the task again
└── Fail         the task has failed for good
BaseException
└── Stopped      the attempt is to end now; clean up and let it pass
    ├── Canceled     somebody cancelled the task
    ├── TimedOut     `timeout_s` is over
    └── Drained      the worker stops; the task is queued again, uncounted
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from math import isfinite
from typing import Any, ClassVar, NamedTuple

from taskgate.contract.ids import NAME_RULE, is_name, new_task_id
from taskgate.contract.limits import (
    MAX_ATTEMPTS,
    MAX_DELAY_S,
    MAX_KEY_CHARS,
    MAX_METADATA_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PRIORITY,
    MAX_TIMEOUT_S,
    ON_CONFLICT,
    is_key,
)

MAX_SUBMITTED = 100
MAX_EVENT_BYTES = 16 * 1024
MAX_CHECKPOINT_BYTES = 256 * 1024
EMITS_A_S, EMITS_AT_ONCE = 200, 400
MAX_EMIT_BYTES_A_S = 1024**2


class Retry(Exception):
    """Run the task again, `after_s` from now; without it, after the backoff of its type."""

    def __init__(self, after_s: float | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler asked for a retry")
        self.after_s = None if after_s is None else seconds("after_s", after_s, MAX_DELAY_S)


class Fail(Exception):
    """The task has failed for good; `reason` is what clients read."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Stopped(BaseException):
    """The attempt is to end now. A sync handler sees it raised, an async one is cancelled; 5 s later it is killed."""


class Canceled(Stopped):
    pass


class TimedOut(Stopped):
    pass


class Drained(Stopped):
    pass


class SubmittedTask(NamedTuple):
    """A task that goes in together with the end of the attempt. None: as its type says."""

    id: str
    type: str
    payload: bytes
    """JSON."""
    queue: str | None
    priority: int
    delay_s: float
    deadline_s: float | None
    timeout_s: float | None
    max_attempts: int | None
    metadata: bytes
    """JSON object; empty when there is none."""
    unique_key: str | None
    on_conflict: str
    concurrency_key: str | None


class Attempt(ABC):
    """One run of a task: who it is, how long it has, and the ways to speak while it runs.

    Reporting is safe from any thread until the handler returns, and does nothing after that.
    """

    keys_hold: ClassVar[bool] = True
    """Whether what it submits can have keys: these hold within a partition, and it lies in that of this task."""

    def __init__(
        self,
        *,
        task_id: str,
        task_type: str,
        number: int,
        metadata: Mapping[str, Any] | None = None,
        resume_from: Any = None,
        traceparent: str = "",
        tracestate: str = "",
    ) -> None:
        self.id = task_id
        self.type = task_type
        self.number = number
        """1 for the first."""
        self.metadata: Mapping[str, Any] = metadata or {}
        self.resume_from = resume_from
        """What the last `checkpoint` of an earlier attempt wrote; None when there was none."""
        self.traceparent = traceparent
        """What this run is part of, for what it calls (W3C trace context): the attempt's span where the supervisor
        exports traces, else that of the submission; "" where nothing is known."""
        self.tracestate = tracestate
        self.submitted: list[SubmittedTask] = []

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of the task: give it to whatever has effects outside."""
        return self.id

    @property
    @abstractmethod
    def remaining_s(self) -> float:
        """Seconds until the timeout, never below 0: give it to your I/O."""

    @property
    @abstractmethod
    def cancel_requested(self) -> bool:
        """Whether the attempt is to end: cancel, timeout or drain."""

    @abstractmethod
    def progress(
        self, current: float, total: float | None = None, *, unit: str = "", stage: str = "", message: str = ""
    ) -> None:
        """Show how far it is; under a microsecond, so call it as often as you like.

        Shown are at most 24 bytes of `unit`, 64 of `stage` and 200 of `message`.

        Raises:
            TypeError, ValueError: a number that is none or does not fit a float, a text that is none.
        """

    @abstractmethod
    def emit(self, name: str, data: Mapping[str, Any] | None = None) -> None:
        """Put an event of your own into the task's stream.

        An attempt has 200 events and 1 MiB a second, and 400 or 1 MiB at once. What is more is lost, and a `gap` in
        its place says how many were. Order is kept.

        Raises:
            ValueError: `name` is no name, or `data` is not JSON or over 16 KiB.
            TypeError: `name` is no str, or `data` no mapping.
        """

    @abstractmethod
    def checkpoint(self, data: Any) -> None:
        """Leave `data` for the next attempt to resume from, if there is one.

        The last one wins. It is written 4 times a second, and before the attempt's end whatever that is.

        Raises:
            ValueError: not JSON, or over 256 KiB.
        """

    @contextmanager
    def waiting(self, text: str = "") -> Iterator[None]:
        """While inside, the task is shown as waiting for `text` instead of stalled."""
        self._waits(text or "something outside")
        try:
            yield
        finally:
            self._waits("")

    @abstractmethod
    def _waits(self, text: str) -> None:
        """`text` "": not any more."""

    def submit(
        self,
        task_type: str,
        payload: Any = None,
        *,
        queue: str | None = None,
        priority: int = 5,
        delay_s: float = 0,
        deadline_s: float | None = None,
        timeout_s: float | None = None,
        max_attempts: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        unique_key: str | None = None,
        on_conflict: str = "return",
        concurrency_key: str | None = None,
    ) -> str:
        """Submit a task together with the success of this attempt; the id is known at once.

        While another task with the `unique_key` has not ended, this one is left out, and a `skipped` event of the
        running task says so; with `on_conflict="replace"` the other one is canceled if it still waits. The running
        task itself is no hindrance: it has ended by then.

        Raises:
            ValueError: the 101st, an option out of range, or what is no JSON or too large.
            TypeError: an option of another type.
        """
        if len(self.submitted) >= MAX_SUBMITTED:
            raise ValueError(f"an attempt submits at most {MAX_SUBMITTED} tasks")
        if on_conflict not in ON_CONFLICT:
            raise ValueError(f"on_conflict must be one of {', '.join(ON_CONFLICT)}")
        if on_conflict != ON_CONFLICT[0] and unique_key is None:
            raise ValueError("on_conflict says what happens to a unique_key, and there is none")
        task = SubmittedTask(
            # The parent's byte: one script ends the parent and accepts these, so they must lie in its partition.
            id=new_task_id(partition_byte=int(self.id[-2:], 16)),
            type=_name("task_type", task_type),
            payload=json_bytes(payload, limit=MAX_PAYLOAD_BYTES),
            queue=None if queue is None else _name("queue", queue),
            priority=_whole("priority", priority, 0, MAX_PRIORITY),
            delay_s=seconds("delay_s", delay_s, MAX_DELAY_S),
            deadline_s=None if deadline_s is None else _positive("deadline_s", deadline_s, MAX_DELAY_S),
            timeout_s=None if timeout_s is None else _positive("timeout_s", timeout_s, MAX_TIMEOUT_S),
            max_attempts=None if max_attempts is None else _whole("max_attempts", max_attempts, 1, MAX_ATTEMPTS),
            metadata=_metadata(metadata),
            unique_key=self._key("unique_key", unique_key),
            on_conflict=on_conflict,
            concurrency_key=self._key("concurrency_key", concurrency_key),
        )
        self.submitted.append(task)
        return task.id

    def _key(self, what: str, value: Any) -> str | None:
        if value is None:
            return None
        check_text(what, value)
        if not is_key(value):
            raise ValueError(f"{what}: keys have 1 to {MAX_KEY_CHARS} printable ASCII characters")
        if not self.keys_hold:
            raise ValueError(f"{what}: with TASKGATE_PARTITIONS above 1 a handler's own tasks can have none")
        return str.__str__(value)

    @cached_property
    def log(self) -> Any:
        """A structlog logger that knows the task."""
        import structlog

        return structlog.get_logger().bind(task_id=self.id, task_type=self.type, attempt=self.number)


def check_progress(current: Any, total: Any, **texts: Any) -> None:
    """Name the argument of `progress` that is none; slow, so only when it was refused.

    Raises:
        TypeError, ValueError: one is wrong.
    """
    numbers = {"current": current} if total is None else {"current": current, "total": total}
    for what, number in numbers.items():
        try:
            isfinite(number)
        except TypeError:
            raise TypeError(f"{what} must be a number, not {type(number).__name__}") from None
        except OverflowError:
            raise ValueError(f"{what} does not fit a float") from None
    for what, text in texts.items():
        check_text(what, text)


def check_text(what: str, value: Any) -> None:
    """Raises TypeError: it is none."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")


def event_json(name: Any, data: Any) -> bytes:
    """The data of an event as JSON.

    Raises:
        TypeError, ValueError: it is none, or `name` no name.
    """
    _name("name", name)
    try:
        members = {} if data is None else dict(data)
    except (TypeError, ValueError):
        raise TypeError(f"data must be a mapping, not {type(data).__name__}") from None
    return json_bytes(members, limit=MAX_EVENT_BYTES)


def seconds(what: str, value: Any, most: float) -> float:
    """`value`, a number between 0 and `most`.

    Raises:
        TypeError, ValueError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}")
    if not 0 <= value <= most:  # NaN as well; before float(), which overflows
        raise ValueError(f"{what} must lie between 0 and {most}")
    return float(value)


def _positive(what: str, value: Any, most: float) -> float:
    number = seconds(what, value, most)
    if number == 0:
        raise ValueError(f"{what} must be above 0")
    return number


def _whole(what: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be a whole number, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{what} must lie between {least} and {most}")
    return int(value)


def _name(what: str, value: Any) -> str:
    check_text(what, value)
    if not is_name(value):
        raise ValueError(f"{what}: names have {NAME_RULE}")
    return str.__str__(value)  # the text of a str enum too


def _metadata(value: Any) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, Mapping):
        raise TypeError(f"metadata must be a mapping, not {type(value).__name__}")
    return json_bytes(dict(value), limit=MAX_METADATA_BYTES) if value else b""


def json_bytes(value: Any, *, limit: int) -> bytes:
    """`value` as strict JSON; pydantic models, dataclasses and times included.

    Raises:
        ValueError: it is none (NaN, unknown types, too deep, lone surrogates), or longer than `limit` bytes.
    """
    from pydantic_core import from_json, to_json

    raw = to_json(value, inf_nan_mode="constants")
    if len(raw) > limit:
        raise ValueError(f"{len(raw)} bytes of JSON, at most {limit} are allowed")
    from_json(raw, allow_inf_nan=False)
    return raw

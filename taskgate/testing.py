"""For unit tests of handlers: an attempt that records what the handler does with it."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from taskgate.attempt import (
    MAX_CHECKPOINT_BYTES,
    Attempt,
    check_progress,
    check_text,
    event_json,
    json_bytes,
)
from taskgate.contract.ids import new_task_id


class Reported(NamedTuple):
    """One call of `progress`."""

    current: float
    total: float | None
    unit: str
    stage: str
    message: str


class RecordingAttempt(Attempt):
    """Call a handler with it, then read `reported`, `emitted`, `checkpoints`, `waits` and `submitted`.

    Set `cancel_requested` to see how the handler takes it.
    """

    cancel_requested = False

    def __init__(self, *, timeout_s: float = 3600, **facts: Any) -> None:
        super().__init__(**facts)
        self._ends_at = time.monotonic() + timeout_s
        self.reported: list[Reported] = []
        self.emitted: list[tuple[str, dict[str, Any]]] = []
        self.checkpoints: list[Any] = []
        self.waits: list[str] = []

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._ends_at - time.monotonic())

    def progress(
        self, current: float, total: float | None = None, *, unit: str = "", stage: str = "", message: str = ""
    ) -> None:
        check_progress(current, total, unit=unit, stage=stage, message=message)
        self.reported.append(Reported(current, total, unit, stage, message))

    def emit(self, name: str, data: Mapping[str, Any] | None = None) -> None:
        event_json(name, data)
        self.emitted.append((name, dict(data or {})))

    def checkpoint(self, data: Any) -> None:
        json_bytes(data, limit=MAX_CHECKPOINT_BYTES)
        self.checkpoints.append(data)

    def _waits(self, text: str) -> None:
        check_text("text", text)
        if text:
            self.waits.append(text)


def attempt(
    *,
    task_type: str = "test",
    number: int = 1,
    timeout_s: float = 3600,
    metadata: Mapping[str, Any] | None = None,
    resume_from: Any = None,
    traceparent: str = "",
) -> RecordingAttempt:
    """An attempt of a task that is nowhere else."""
    return RecordingAttempt(
        task_id=new_task_id(),
        task_type=task_type,
        number=number,
        timeout_s=timeout_s,
        metadata=metadata,
        resume_from=resume_from,
        traceparent=traceparent,
    )

"""The attempt as a handler in a child sees it: progress into the slot, everything else as packets."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from taskgate.attempt import MAX_CHECKPOINT_BYTES, Attempt, check_progress, check_text, event_json, json_bytes
from workers.pace import Pace
from workers.slot import Record, StopReason, boot_ns
from workers.wire import Checkpoint, Emitted, Message, Submitted, Task


class ChildAttempt(Attempt):
    """Reports go to the task's record and channel until `close`; after that they go nowhere."""

    def __init__(self, task: Task, record: Record, *, started_ns: int, send: Callable[[Message], None]) -> None:
        super().__init__(
            task_id=task.id,
            task_type=task.type,
            number=task.number,
            metadata=msgspec.json.decode(task.metadata) if task.metadata else None,
            resume_from=msgspec.json.decode(task.checkpoint) if task.checkpoint else None,
            traceparent=task.traceparent,
            tracestate=task.tracestate,
        )
        self._seq = task.seq
        self._record = record
        writer = record.writer(task.seq)
        self._report: Callable[..., None] = writer.progress
        self._report_wait: Callable[..., None] = writer.waiting
        self._send: Callable[..., None] = send
        self.timeout_s = task.timeout_s
        self._ends_ns = started_ns + int(task.timeout_s * 1e9)
        self._stopped: StopReason | None = None
        self.emitted = 0
        """Events of its own, those that were lost included."""
        self._pace: Pace | None = None

    @property
    def remaining_s(self) -> float:
        return max(0.0, (self._ends_ns - boot_ns()) / 1e9)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it is to end; kept when the record has gone to another task."""
        if self._stopped is None:
            self._stopped = self._record.stop_reason(self._seq)
        return self._stopped

    @property
    def cancel_requested(self) -> bool:
        return self.stop_reason is not None

    def progress(
        self, current: float, total: float | None = None, *, unit: str = "", stage: str = "", message: str = ""
    ) -> None:
        try:
            self._report(current, total, unit, stage, message)
        except Exception:
            check_progress(current, total, unit=unit, stage=stage, message=message)
            raise

    def emit(self, name: str, data: Mapping[str, Any] | None = None) -> None:
        body = event_json(name, data)
        with _emitting:
            self.emitted += 1
            pace = self._pace = self._pace or Pace()
            if pace.admits(len(body)):
                self._send(Emitted(self._seq, self.emitted, name, body))
            elif pace.tells_loss():
                self._send(Emitted(self._seq, self.emitted, "", b""))

    def checkpoint(self, data: Any) -> None:
        self._send(Checkpoint(self._seq, json_bytes(data, limit=MAX_CHECKPOINT_BYTES)))

    def _waits(self, text: str) -> None:
        try:
            self._report_wait(text)
        except AttributeError:
            check_text("text", text)
            raise

    def submissions(self) -> list[Submitted]:
        """What goes with the end of the attempt.

        Raises:
            msgspec.ValidationError: the handler has put something of its own into `submitted`.
        """
        if self.submitted == []:
            return []
        return msgspec.convert([tuple(one) for one in self.submitted], list[Submitted])

    def close(self) -> None:
        """Threads that the handler left behind report into the void, not into the next task's record."""
        self._report = self._report_wait = self._send = _nowhere


_emitting = threading.RLock()
"""Numbers must leave in their order; a signal handler may emit within an `emit`."""


def _nowhere(*_: object) -> None:
    return None

"""A dead letter as clients see it: the failed task, and what came of each of its attempts."""

from datetime import datetime

import msgspec

from app.view import TaskView, at, task_view
from taskgate.contract.models import History, PastAttempt, TaskRecord


class AttemptView(msgspec.Struct, kw_only=True):
    """An attempt that did not succeed."""

    attempt: int
    started_at: datetime
    finished_at: datetime
    worker: str
    error: msgspec.Raw | None
    """As in a task: kind, message, traceback, stack, …"""
    rss_peak_bytes: int | None
    redriven_at: datetime | None
    """When the redrive was that this attempt came of; null: it came of the submission."""


class LetterView(TaskView, kw_only=True):
    """A dead letter: the failed task, and what came of its attempts, also of those before redrives."""

    attempts: list[AttemptView]
    """Oldest first."""
    attempts_lost: int
    """So many older ones are no longer kept."""


class _Peak(msgspec.Struct):
    rss_peak_bytes: int | None = None


_peak = msgspec.json.Decoder(_Peak | None).decode


def letter_view(history: History) -> LetterView:
    record = history.record
    attempts = [_attempt(past) for past in history.attempts]
    if record.worker:  # else no attempt ended it
        attempts.append(_attempt(_last(record, history.redriven_ms)))
    return LetterView(
        **msgspec.structs.asdict(task_view(record)),
        attempts=attempts,
        attempts_lost=history.lost,
    )


def _attempt(past: PastAttempt) -> AttemptView:
    peaks = [each.rss_peak_bytes for each in (_peak(past.effort), _peak(past.error)) if each is not None]
    return AttemptView(
        attempt=past.attempt,
        started_at=at(past.started_ms),
        finished_at=at(past.finished_ms),
        worker=past.worker,
        error=past.error,
        rss_peak_bytes=max((each for each in peaks if each is not None), default=None),
        redriven_at=at(past.redriven_ms) if past.redriven_ms else None,
    )


def _last(record: TaskRecord, redriven_ms: int) -> PastAttempt:
    """The attempt that the record shows."""
    return PastAttempt(
        attempt=record.attempt,
        started_ms=record.started_ms,
        finished_ms=record.finished_ms,
        worker=record.worker,
        redriven_ms=redriven_ms,
        error=msgspec.Raw(record.error or b"null"),
        effort=msgspec.Raw(record.effort or b"null"),
    )

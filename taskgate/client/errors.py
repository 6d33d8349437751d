"""What goes wrong with a call.

ServiceError
├── Unsendable          what a call was given fits no request: told before anything is sent (a ValueError, too)
├── Unreachable         no answer, or not one of Taskgate
├── Refused             a problem answer (RFC 9457)
│   ├── Invalid         400, 413, 414, 415, 422, 431: the request is wrong; `errors` says where
│   │   └── KeyReused   its Idempotency-Key belongs to another body
│   ├── Unauthorized    401, 403
│   ├── NotFound        404: no such task of yours
│   │   └── Gone        410: it was, longer ago than it is kept
│   ├── NotFinished     409: it has not ended
│   ├── NotCancelable   409: it has ended otherwise
│   ├── NotDead         409: only failed tasks are redriven
│   ├── NotRunning      409: only what runs has a stack
│   ├── UniqueConflict  409: another task with the same unique_key has not ended; `problem` has its `task_id`
│   ├── TooMany         429
│   │   └── QueueFull   as much waits as is allowed
│   └── Unavailable     408, 502, 503, 504: not now
├── StillRunning        the time that `wait` was given is over (a TimeoutError, too)
└── NotSucceeded        what `wait(check=True)` says of a task that ended otherwise
    ├── TaskFailed
    ├── TaskCanceled
    └── TaskExpired
"""

import email.utils
import time
from collections.abc import Mapping
from typing import Any

from taskgate.client.models import Task


class ServiceError(Exception):
    pass


class Unsendable(ServiceError, ValueError):
    pass


class Unreachable(ServiceError):
    pass


class Refused(ServiceError):
    """`slug` is the last part of the problem's type; `errors` are (JSON pointer, detail); `problem` has all of it."""

    def __init__(self, status: int, problem: Mapping[str, Any], *, retry_after: str | None = None) -> None:
        self.status = status
        self.problem = dict(problem)
        self.title = str(problem.get("title") or "refused")
        self.slug = _slug(problem) or self.title
        self.detail = str(problem.get("detail") or "")
        self.errors = [
            (str(one.get("pointer", "")), str(one.get("detail", "")))
            for one in problem.get("errors") or []
            if isinstance(one, dict)
        ]
        self.retry_after_s = _seconds(retry_after)
        super().__init__(f"{self.status} {self.slug}: {self.detail or self.title}")


class Invalid(Refused):
    pass


class KeyReused(Invalid):
    pass


class Unauthorized(Refused):
    pass


class NotFound(Refused):
    pass


class Gone(NotFound):
    pass


class NotFinished(Refused):
    pass


class NotCancelable(Refused):
    pass


class NotDead(Refused):
    pass


class NotRunning(Refused):
    pass


class UniqueConflict(Refused):
    pass


class TooMany(Refused):
    pass


class QueueFull(TooMany):
    pass


class Unavailable(Refused):
    pass


class StillRunning(ServiceError, TimeoutError):
    """`task` is how it was seen last: nothing but its id, if there was no answer (`__cause__` says why)."""

    def __init__(self, task: Task, cause: ServiceError | None = None) -> None:
        self.task = task
        known = f"is still {task['status']}" if "status" in task else "was not seen to end"
        super().__init__(f"task {task['id']} {known}; its time is over{'' if cause is None else f': {cause}'}")


class NotSucceeded(ServiceError):
    """`task` is how it ended; `kind` and `message` are those of its error, if it has one."""

    def __init__(self, task: Task) -> None:
        self.task = task
        error = task.get("error") or {}
        self.kind = str(error.get("kind") or "")
        self.message = str(error.get("message") or "")
        why = f": {self.kind}: {self.message}" if error else ""
        super().__init__(f"task {task['id']} {task.get('status')}{why}")


class TaskFailed(NotSucceeded):
    pass


class TaskCanceled(NotSucceeded):
    pass


class TaskExpired(NotSucceeded):
    pass


_BY_SLUG: dict[str, type[Refused]] = {
    "idempotency-key-reused": KeyReused,
    "not-finished": NotFinished,
    "not-cancelable": NotCancelable,
    "not-dead": NotDead,
    "not-running": NotRunning,
    "queue-full": QueueFull,
    "unique-conflict": UniqueConflict,
}
_BY_STATUS: dict[int, type[Refused]] = {
    **dict.fromkeys((400, 413, 414, 415, 422, 431), Invalid),
    **dict.fromkeys((401, 403), Unauthorized),
    404: NotFound,
    410: Gone,
    429: TooMany,
    **dict.fromkeys((408, 502, 503, 504), Unavailable),
}
_BY_END: dict[str, type[NotSucceeded]] = {"failed": TaskFailed, "canceled": TaskCanceled, "expired": TaskExpired}


def refusal(status: int, problem: Mapping[str, Any], *, retry_after: str | None = None) -> Refused:
    """The error of an answer; by its problem type, since that says more than the code."""
    kind = _BY_SLUG.get(_slug(problem)) or _BY_STATUS.get(status, Refused)
    return kind(status, problem, retry_after=retry_after)


def not_succeeded(task: Task) -> NotSucceeded:
    return _BY_END.get(task.get("status", ""), NotSucceeded)(task)


def _slug(problem: Mapping[str, Any]) -> str:
    return str(problem.get("type", "")).rpartition("/")[2]


def _seconds(header: str | None) -> float | None:
    """Either form of `Retry-After`; None without one, or when it is malformed."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        moment = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())

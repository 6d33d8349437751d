"""Domain errors of the contract. `app/errors.py` alone turns them into HTTP.

TaskgateError
├── TaskNotFound            no record of that id
├── Refused                 admission refused: names the limit and when room is expected
│   ├── QueueFull           the queue's
│   ├── QuotaExceeded       the tenant's
│   └── RateLimited         the tenant's rate
│       └── KeyRateLimited  that of the API key
├── IdempotencyConflict     the key was used with another body
├── UniqueConflict          another live task has the unique key
├── NotCancelable           already ended in another way
├── NotDead                 redrive of a task that is not failed
├── DeadlinePassed          redrive of a spilled task after its start deadline
├── NotFinished             the result of a task that has not ended
├── ResultGone              of a task that is still known: dropped, since finished tasks kept too much
├── KeyNotFound             no API key of that id
├── KeysFull                no room for another API key
├── NoSuchWorker            a claim by a supervisor that has not beaten
├── StoreUnavailable        Redis is away: nothing was done
└── OutcomeUnknown          Redis went away after the command was sent: it may have been done
"""

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskgate.contract.models import Room


FAULTS = Counter({"unavailable": 0, "outcome_unknown": 0})
"""How often Redis has failed this process, for its metrics."""


class TaskgateError(Exception):
    pass


class TaskNotFound(TaskgateError):
    pass


class KeyNotFound(TaskgateError):
    pass


class KeysFull(TaskgateError):
    pass


class Refused(TaskgateError):
    """`limit`: `queue-` or `tenant-` `tasks`, `bytes` or `wait`, `rate` or `rate-key`. `retry_after_s`: seconds until
    room is expected, unrounded. `room`: all limits in force; None where nobody shows them. `waits`: asked for again.
    """

    words = ""
    waits = False

    def __init__(
        self, *, limit: str, queue: str, tenant: str, retry_after_s: float, room: "Room | None" = None
    ) -> None:
        super().__init__(self.words.format(limit=limit, queue=queue, tenant=tenant))
        self.limit = limit
        self.queue = queue
        self.tenant = tenant
        self.retry_after_s = retry_after_s
        self.room = room


class QueueFull(Refused):
    words = "queue {queue!r} is full ({limit})"


class QuotaExceeded(Refused):
    words = "tenant {tenant!r} has as much waiting as it may ({limit})"


class RateLimited(Refused):
    words = "tenant {tenant!r} submits faster than it may ({limit})"


class KeyRateLimited(RateLimited):
    words = "the API key submits faster than it may ({limit})"
    key_rate = ""
    """As Submission.key_rate."""


class IdempotencyConflict(TaskgateError):
    pass


class UniqueConflict(TaskgateError):
    def __init__(self, task_id: str, status: str) -> None:
        super().__init__(f"task {task_id}, which is {status}, has the same unique key")
        self.task_id = task_id
        self.status = status


class NotCancelable(TaskgateError):
    def __init__(self, status: str) -> None:
        super().__init__(f"the task is already {status}")
        self.status = status


class NotDead(TaskgateError):
    def __init__(self, status: str) -> None:
        super().__init__(f"only failed tasks can be redriven; this one is {status}")
        self.status = status


class DeadlinePassed(TaskgateError):
    def __init__(self) -> None:
        super().__init__("the task has not started by its deadline, and never will")


class NotFinished(TaskgateError):
    def __init__(self, status: str) -> None:
        super().__init__(f"the task is {status}")
        self.status = status


class ResultGone(TaskgateError):
    pass


class NoSuchWorker(TaskgateError):
    pass


class StoreUnavailable(TaskgateError):
    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        FAULTS["unavailable"] += 1


class OutcomeUnknown(TaskgateError):
    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        FAULTS["outcome_unknown"] += 1

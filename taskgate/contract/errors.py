"""Domain errors of the contract. `app/errors.py` alone turns them into HTTP.

TaskgateError
├── TaskNotFound            no record of that id
├── QueueFull               admission refused: names the limit and when room is expected
├── IdempotencyConflict     the key was used with another body
├── NotCancelable           already ended in another way
├── NotDead                 redrive of a task that is not failed
├── NotFinished             the result of a task that has not ended
├── ResultGone              of a task that is still known: dropped, since finished tasks kept too much
├── NoSuchWorker            a claim by a supervisor that has not beaten
├── StoreUnavailable        Redis is away: nothing was done
└── OutcomeUnknown          Redis went away after the command was sent: it may have been done
"""


class TaskgateError(Exception):
    pass


class TaskNotFound(TaskgateError):
    pass


class QueueFull(TaskgateError):
    """`limit`: `queue-tasks` or `queue-bytes`. `retry_after_s`: seconds until room is expected, unrounded."""

    def __init__(self, *, limit: str, queue: str, retry_after_s: float) -> None:
        super().__init__(f"queue {queue!r} is full ({limit})")
        self.limit = limit
        self.queue = queue
        self.retry_after_s = retry_after_s


class IdempotencyConflict(TaskgateError):
    pass


class NotCancelable(TaskgateError):
    def __init__(self, status: str) -> None:
        super().__init__(f"the task is already {status}")
        self.status = status


class NotDead(TaskgateError):
    def __init__(self, status: str) -> None:
        super().__init__(f"only failed tasks can be redriven; this one is {status}")
        self.status = status


class NotFinished(TaskgateError):
    def __init__(self, status: str) -> None:
        super().__init__(f"the task is {status}")
        self.status = status


class ResultGone(TaskgateError):
    pass


class NoSuchWorker(TaskgateError):
    pass


class StoreUnavailable(TaskgateError):
    pass


class OutcomeUnknown(TaskgateError):
    pass

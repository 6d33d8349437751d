"""What the store should do, in plain Python: the other half of the comparison in test_model.py."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from taskgate.contract.models import NEIGHBOUR_LIMIT, BeatValue, Claimed, Served
from taskgate.contract.states import FINAL, WAITING, Status

RETENTION_MS = 40_000
DEAD_RETENTION_MS = 90_000
HELD = frozenset({Status.RUNNING, Status.CANCELING})


class Token(NamedTuple):
    """Who claimed what, under which epoch: all that a write of an attempt proves itself by."""

    task_id: str
    worker: str
    epoch: int


class Lane(NamedTuple):
    queue: str
    type: str
    alone: bool


@dataclass
class Task:
    id: str
    lane: Lane
    tenant: str
    created_ms: int
    score: int
    max_attempts: int
    status: Status
    due_ms: int
    deadline_ms: int | None
    attempt: int = 0
    epoch: int = 0
    worker: str = ""
    met: bool = False
    """It was started once, or received by a child, so that its start deadline holds no more."""
    done: Token | None = None
    neighbours: int = 0
    reported: tuple[int, int] = (0, 0)
    """Epoch and number of the last report."""
    redriven: str = ""
    purge_ms: int = 0

    @property
    def token(self) -> Token:
        return Token(self.id, self.worker, self.epoch)

    @property
    def unmet_deadline_ms(self) -> int | None:
        return None if self.met else self.deadline_ms


class Reference:
    """Tasks, living supervisors and idempotency keys; methods are the transitions, and say what should be answered."""

    def __init__(self, served: Iterable[Served], clock: Callable[[], int]) -> None:
        self.tasks: dict[str, Task] = {}
        self.beats: dict[str, BeatValue] = {}
        self._kinds = {(each.queue, each.type): each.kind for each in served}
        self._clock = clock
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}

    def waiting(self, queue: str) -> int:
        return sum(task.lane.queue == queue for task in self.tasks.values() if task.status in WAITING)

    def queued(self) -> dict[tuple[Lane, str], list[str]]:
        """Ids of queued tasks by lane and tenant, in the order of their claims."""
        found: dict[tuple[Lane, str], list[str]] = defaultdict(list)
        for task in sorted(self.tasks.values(), key=lambda task: (task.score, task.id)):
            if task.status is Status.QUEUED:
                found[task.lane, task.tenant].append(task.id)
        return found

    def held(self, worker: str) -> set[Token]:
        return {task.token for task in self.tasks.values() if task.worker == worker and task.status in HELD}

    def slot(self, lane: Lane) -> str | None:
        """Which slots a lane's tasks need; None: nobody serves it."""
        kind = self._kinds.get((lane.queue, lane.type))
        return "alone" if kind == "async" and lane.alone else kind

    def submit(self, task: Task, *, key: str, fingerprint: str, limit: int) -> str:
        """`ok`, `full`, `conflict`, or the id that is replayed."""
        if task.id in self.tasks:
            return "ok"
        seen, earlier = self._keys.get((task.tenant, key), ("", ""))
        if key and earlier in self.tasks:
            return earlier if seen == fingerprint else "conflict"
        if self.waiting(task.lane.queue) >= limit:
            return "full"
        self.accept(task)
        if key:
            self._keys[task.tenant, key] = fingerprint, task.id
        return "ok"

    def accept(self, task: Task) -> None:
        self.tasks[task.id] = replace(task)

    def start(self, token: Token) -> Task:
        task = self.tasks[token.task_id]
        assert task.status is Status.QUEUED, "claimed although it is not queued"
        assert token.epoch == task.epoch + 1
        task.status, task.worker, task.epoch, task.attempt = Status.RUNNING, token.worker, token.epoch, task.attempt + 1
        return task

    def refusal(self, token: Token) -> str | None:
        """What a write by this token is answered with when it may not be."""
        task = self.tasks.get(token.task_id)
        if task is None:
            return "not_found"
        if task.done == token:
            return "done"
        return None if task.status in HELD and task.token == token else "stale"

    def finish(self, token: Token, outcome: str, *, delay_ms: int, submitted: Iterable[Task]) -> str:
        if refused := self.refusal(token):
            return refused
        task = self.tasks[token.task_id]
        task.done = token
        if outcome == "succeeded":
            self._end(task, Status.SUCCEEDED)
            for each in submitted:
                self.accept(each)
        elif task.status is Status.CANCELING:
            self._end(task, Status.CANCELED)
        elif outcome == "retry" and task.attempt < task.max_attempts:
            self._requeue(task, delay_ms=delay_ms, met=True)
        else:
            self._end(task, Status.FAILED)
        return str(task.status)

    def hand_back(self, token: Token, *, delay_ms: int, ran: bool, reason: str) -> str:
        if refused := self.refusal(token):
            return refused
        task = self.tasks[token.task_id]
        task.done = token
        if task.status is Status.CANCELING:
            self._end(task, Status.CANCELED)
            return str(task.status)
        if reason in ("neighbour", "suspect"):
            task.neighbours += NEIGHBOUR_LIMIT if reason == "suspect" else 1
            if task.neighbours >= NEIGHBOUR_LIMIT:
                task.lane = task.lane._replace(alone=True)
        task.attempt -= 1
        self._requeue(task, delay_ms=delay_ms, met=ran)
        return str(task.status)

    def report(self, token: Token, number: int) -> str:
        if refused := self.refusal(token):
            return refused
        task = self.tasks[token.task_id]
        if task.reported[0] == token.epoch and number <= task.reported[1]:
            return "done"
        task.reported = token.epoch, number
        return "ok"

    def cancel(self, task_id: str) -> str:
        """The status it leads to, `final` or `not_found`."""
        task = self.tasks.get(task_id)
        if task is None:
            return "not_found"
        if task.status is Status.RUNNING:
            task.status = Status.CANCELING
        elif task.status in WAITING:
            self._end(task, Status.CANCELED)
        return str(task.status) if task.status in (Status.CANCELING, Status.CANCELED) else "final"

    def redrive(self, task_id: str, request_id: str, *, limit: int) -> str:
        task = self.tasks.get(task_id)
        if task is None:
            return "not_found"
        if task.redriven == request_id:
            return "ok"
        if task.status is not Status.FAILED:
            return "not_dead"
        if self.waiting(task.lane.queue) >= limit:
            return "full"
        task.status, task.attempt, task.worker, task.redriven = Status.QUEUED, 0, "", request_id
        task.deadline_ms, task.met = None, False
        return "ok"

    def delete(self, task_id: str) -> str:
        task = self.tasks.get(task_id)
        if task is None:
            return "not_found"
        if task.status not in FINAL:
            return "not_finished"
        del self.tasks[task_id]
        return "ok"

    def newest_first(self, tenant: str) -> list[str]:
        """What a tenant's list shows, page by page."""
        own = [task for task in self.tasks.values() if task.tenant == tenant]
        return [task.id for task in sorted(own, key=lambda task: (task.created_ms, task.id), reverse=True)]

    def reap(self, worker: str, watched: BeatValue) -> bool:
        """Whether it was found dead."""
        if self.beats.get(worker) != watched:
            return False
        for token in self.held(worker):
            task = self.tasks[token.task_id]
            if task.status is Status.CANCELING:
                self._end(task, Status.CANCELED)
            elif task.attempt >= task.max_attempts:
                self._end(task, Status.FAILED)
            else:
                self._requeue(task, delay_ms=0, met=True)
        del self.beats[worker]
        return True

    def goodbye(self, worker: str) -> bool:
        if self.held(worker):
            return False
        self.beats.pop(worker, None)
        return True

    def promote(self) -> None:
        now = self._clock()
        for task in self.tasks.values():
            if task.status in WAITING and self.has_expired(task):
                self._end(task, Status.EXPIRED)
            elif task.status in (Status.SCHEDULED, Status.RETRYING) and task.due_ms <= now:
                task.status = Status.QUEUED

    def has_expired(self, task: Task) -> bool:
        return task.unmet_deadline_ms is not None and task.unmet_deadline_ms <= self._clock()

    def expire(self, task: Task) -> None:
        assert task.status is Status.QUEUED
        assert self.has_expired(task)
        self._end(task, Status.EXPIRED)

    def next_due_ms(self) -> int:
        """0: nothing is due ever."""
        times = [
            at
            for task in self.tasks.values()
            if task.status in WAITING
            for at in (task.unmet_deadline_ms, None if task.status is Status.QUEUED else task.due_ms)
            if at is not None
        ]
        return min(times, default=0)

    def fail_unserved(self, worker: str, lane: Lane) -> int | None:
        if worker not in self.beats or (lane.queue, lane.type) in self._kinds:
            return None
        found = [task for task in self.tasks.values() if task.status is Status.QUEUED and task.lane == lane]
        for task in found:
            self._end(task, Status.FAILED)
        return len(found)

    def trim(self) -> int:
        over = [task.id for task in self.tasks.values() if task.status in FINAL and task.purge_ms <= self._clock()]
        for task_id in over:
            del self.tasks[task_id]
        return len(over)

    def _end(self, task: Task, status: Status) -> None:
        task.status = status
        task.purge_ms = self._clock() + (DEAD_RETENTION_MS if status is Status.FAILED else RETENTION_MS)

    def _requeue(self, task: Task, *, delay_ms: int, met: bool) -> None:
        task.status = Status.RETRYING if delay_ms else Status.QUEUED
        task.worker = ""
        task.met = task.met or met
        task.due_ms = self._clock() + delay_ms


class Fairness:
    """Counts what two that compete were given while both had something waiting all the time."""

    MOST_AHEAD = 2
    """One for where they stood when it began, one for whose turn it is."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str, str], tuple[int, int]] = {}

    def took(self, group: str, backlog_before: set[str], taken: dict[str, int], backlog_after: set[str]) -> None:
        """A claim gave that many to each competitor; both backlogs: who had something waiting before and after it."""
        both = sorted(backlog_before & backlog_after)
        for n, first in enumerate(both):
            for second in both[n + 1 :]:
                pair = group, first, second
                one, other = self._given.get(pair, (0, 0))
                one, other = one + taken.get(first, 0), other + taken.get(second, 0)
                self._given[pair] = one, other
                assert abs(one - other) <= self.MOST_AHEAD, f"unfair: {pair} got {one} and {other}"

    def only(self, backlogs: dict[str, set[str]]) -> None:
        """These have something waiting now, by group; who has not begins anew."""
        self._given = {
            pair: given for pair, given in self._given.items() if set(pair[1:]) <= backlogs.get(pair[0], set())
        }


def tokens(worker: str, claimed: Iterable[Claimed]) -> list[Token]:
    return [Token(task.id, worker, task.epoch) for task in claimed]

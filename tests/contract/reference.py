"""What the store should do, in plain Python: the other half of the comparison in test_model.py."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from taskgate.contract.models import NEIGHBOUR_LIMIT, BeatValue, Claimed, Served
from taskgate.contract.states import FINAL, WAITING, Status
from taskgate.footprint import TASK_BYTES
from taskgate.policy import Policy, QueuePolicy
from tests.contract.admission import Rates, Used, passed_limit

RETENTION_MS = 40_000
DEAD_RETENTION_MS = 90_000
HELD = frozenset({Status.RUNNING, Status.CANCELING})

Leaving = Callable[[str, str], float | None]
"""How many tasks leave a second, of a `queue` or `tenant` and its name; None: nothing was measured yet."""


class Token(NamedTuple):
    """Who claimed what, under which epoch: all that a write of an attempt proves itself by."""

    task_id: str
    worker: str
    epoch: int


class Answer(NamedTuple):
    """`ok`, `replay`, `conflict`, `existing`, `unique_conflict`, `spilled`, `rate`, or the limit it would pass."""

    what: str
    task_id: str = ""
    """Which counts; "": none."""
    waits: bool = False
    """Refused, but whoever asked looks again."""


class Lane(NamedTuple):
    queue: str
    type: str
    alone: bool


class Group(NamedTuple):
    """Tasks of the same tenant, type and concurrency key."""

    tenant: str
    type: str
    key: str


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
    bytes: int = TASK_BYTES
    unique_key: str = ""
    group: Group | None = None
    at_a_time: int = 1
    """So many of its group are ready or run."""
    blocked: bool = False
    """It is queued, and all places of its group are taken."""
    spilled: bool = False
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
    finished_ms: int = 0
    purge_ms: int = 0
    past: int = 0
    """Unsuccessful attempts before the last one."""

    @property
    def order(self) -> tuple[int, str]:
        return self.score, self.id

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
        self.rates = Rates()
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}

    def used(self, kind: str, name: str, leaving_per_s: float | None, *, without: Task | None = None) -> Used:
        """By what waits; `kind`: `queue` or `tenant`."""
        there = [
            task
            for task in self.tasks.values()
            if task.status in WAITING and (task.lane.queue if kind == "queue" else task.tenant) == name
            if task is not without
        ]
        queued = sum(task.status is Status.QUEUED for task in there)
        return Used(len(there), queued, sum(task.bytes for task in there), leaving_per_s)

    def spilled(self, queue: str) -> list[Task]:
        return [
            task
            for task in self.tasks.values()
            if task.spilled and task.status is Status.FAILED and task.lane.queue == queue
        ]

    def running(self) -> list[Task]:
        return [task for task in self.tasks.values() if task.status in HELD]

    def ready(self) -> dict[tuple[Lane, str], list[str]]:
        """Ids of tasks that no concurrency key holds up, by lane and tenant, in the order of their claims."""
        found: dict[tuple[Lane, str], list[str]] = defaultdict(list)
        for task in sorted(self.tasks.values(), key=lambda task: task.order):
            if task.status is Status.QUEUED and not task.blocked:
                found[task.lane, task.tenant].append(task.id)
        return found

    def held(self, worker: str) -> set[Token]:
        return {task.token for task in self.tasks.values() if task.worker == worker and task.status in HELD}

    def blocked(self) -> set[str]:
        return {task.id for task in self.tasks.values() if task.blocked}

    def slot(self, lane: Lane) -> str | None:
        """Which slots a lane's tasks need; None: nobody serves it."""
        kind = self._kinds.get((lane.queue, lane.type))
        return "alone" if kind == "async" and lane.alone else kind

    def submit(
        self,
        task: Task,
        *,
        key: str,
        fingerprint: str,
        on_conflict: str,
        policy: Policy,
        leaving: Leaving,
        others: str,
        held: dict[str, str],
    ) -> Answer:
        """`others` wait for room where one can; it is `behind` them, or does not wait (`closed`); "": nobody waits.
        `held`: by those before it in the call, of which each waits for the named limit of its queue.
        """
        if task.id in self.tasks:
            return Answer("ok", task.id)
        seen, earlier = self._keys.get((task.tenant, key), ("", ""))
        if key and earlier in self.tasks:
            return Answer("replay", earlier) if seen == fingerprint else Answer("conflict")
        holder = self._in_the_way(task)
        if holder and on_conflict == "return":
            self._keep_key(task.tenant, key, fingerprint, holder.id)
            return Answer("existing", holder.id)
        if holder and not (on_conflict == "replace" and holder.status in WAITING):
            return Answer("unique_conflict", holder.id)
        if self.rates.excess_ms(task.tenant, policy.tenant(task.tenant), self._clock()) > 0:
            self.rates.refuse(task.tenant, policy.tenant(task.tenant), self._clock())
            return Answer("rate")
        limit = self._full(task, policy, leaving, replaced=holder)
        queue, of_queue = task.lane.queue, policy.queue(task.lane.queue)
        has_place = holder is not None and holder.lane.queue == queue and holder.bytes >= task.bytes
        if of_queue.on_full == "wait" and not limit and not has_place:
            limit = "queue-tasks" if others else held.get(queue)
        if limit and not self._can_spill(task, of_queue, limit):
            most_bytes = (of_queue if limit.startswith("queue") else policy.tenant(task.tenant)).limit_bytes
            can_wait = of_queue.on_full == "wait" and others != "closed"
            waits = can_wait and (most_bytes is None or task.bytes <= most_bytes)
            if waits and limit.startswith("queue"):
                held.setdefault(queue, limit)
            return Answer(limit, waits=waits)
        self.rates.count(task.tenant, policy.tenant(task.tenant), self._clock())
        self._keep_key(task.tenant, key, fingerprint, task.id)
        if limit:
            self.tasks[task.id] = spilled = replace(task, spilled=True)
            self._end(spilled, Status.FAILED)
            return Answer("spilled", task.id)
        if holder:
            self._end(holder, Status.CANCELED)
        self.accept(task)
        return Answer("ok", task.id)

    def holder(self, tenant: str, unique_key: str, *, ends: Task | None = None) -> Task | None:
        """The live task of that key; `ends`: one that does not count any more."""
        found = [
            task
            for task in self.tasks.values()
            if unique_key and (task.tenant, task.unique_key) == (tenant, unique_key)
            if task.status not in FINAL and task is not ends
        ]
        assert len(found) < 2, "two live tasks of one key"
        return found[0] if found else None

    def _in_the_way(self, task: Task, *, ends: Task | None = None) -> Task | None:
        """The holder of the unique key of what is submitted; one that can never start any more ends here."""
        holder = self.holder(task.tenant, task.unique_key, ends=ends)
        if holder and holder.status in WAITING and self.has_expired(holder):
            self._end(holder, Status.EXPIRED)
            return None
        return holder

    def _keep_key(self, tenant: str, key: str, fingerprint: str, task_id: str) -> None:
        if key:
            self._keys[tenant, key] = fingerprint, task_id

    def _full(self, task: Task, policy: Policy, leaving: Leaving, *, replaced: Task | None = None) -> str | None:
        """The limit that it would pass once what it replaces has left."""
        queue, tenant = task.lane.queue, task.tenant

        def used(kind: str, name: str) -> Used:
            return self.used(kind, name, leaving(kind, name), without=replaced)

        return passed_limit("queue", policy.queue(queue), used("queue", queue), task.bytes) or passed_limit(
            "tenant", policy.tenant(tenant), used("tenant", tenant), task.bytes
        )

    def _can_spill(self, task: Task, policy: QueuePolicy, limit: str) -> bool:
        """Tenants' limits fill half of the room at most."""
        there = self.spilled(task.lane.queue)
        part = 1 if limit.startswith("queue") else 0.5
        return (
            policy.on_full == "spill"
            and len(there) + 1 <= part * policy.spill_tasks
            and sum(each.bytes for each in there) + task.bytes <= part * policy.spill_bytes
        )

    def _submitted(self, task: Task, on_conflict: str, *, parent: Task) -> None:
        """By a handler: no limit refuses it, but it is left out where it would have to be another one."""
        holder = self._in_the_way(task, ends=parent)  # which may submit its own successor
        if holder and not (on_conflict == "replace" and holder.status in WAITING):
            return
        if holder:
            self._end(holder, Status.CANCELED)
        self.accept(task)

    def accept(self, task: Task) -> None:
        self.tasks[task.id] = task = replace(task)
        if task.status is Status.QUEUED:
            self._enqueue(task)

    def start(self, token: Token) -> Task:
        task = self.tasks[token.task_id]
        assert task.status is Status.QUEUED, "claimed although it is not queued"
        assert not task.blocked, "claimed although all places of its key are taken"
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

    def finish(self, token: Token, outcome: str, *, delay_ms: int, submitted: Iterable[tuple[Task, str]]) -> str:
        if refused := self.refusal(token):
            return refused
        task = self.tasks[token.task_id]
        task.done = token
        if outcome == "succeeded":
            for each, on_conflict in submitted:
                self._submitted(each, on_conflict, parent=task)
            self._end(task, Status.SUCCEEDED)
        elif task.status is Status.CANCELING:
            self._end(task, Status.CANCELED)
        elif outcome == "retry" and task.attempt < task.max_attempts:
            task.past += 1
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

    def redrive(
        self,
        task_id: str,
        request_id: str,
        *,
        policy: Policy,
        leaving: Leaving,
        tenant: str = "",
        before_ms: int = 0,
        start_ms: int = 0,
    ) -> str:
        """`ok`, the limit it would pass, or why it is none to redrive. `start_ms`: not before then."""
        task = self._of(tenant, task_id)
        if task is None:
            return "not_found"
        if task.redriven == request_id:
            return "ok"
        if not self._is_letter(task, before_ms):
            return "not_dead"
        if task.spilled and self.has_expired(task):
            return "deadline_passed"
        if self._in_the_way(task):
            return "unique_conflict"
        if limit := self._full(task, policy, leaving):
            return limit
        task.past += task.worker != ""
        task.attempt, task.worker, task.redriven, task.epoch = 0, "", request_id, max(1, task.epoch)
        if task.spilled:
            start_ms = max(start_ms, task.due_ms)
        else:
            task.deadline_ms = None
        task.met, task.spilled = False, False
        if start_ms > self._clock():
            task.status, task.due_ms = Status.SCHEDULED, start_ms
        else:
            self._enqueue(task)
        return "ok"

    def _of(self, tenant: str, task_id: str) -> Task | None:
        """ "" is any tenant."""
        task = self.tasks.get(task_id)
        return task if task is not None and tenant in ("", task.tenant) else None

    def _is_letter(self, task: Task, before_ms: int) -> bool:
        """`before_ms`: it failed before then; 0: at any time."""
        return task.status is Status.FAILED and (not before_ms or task.finished_ms < before_ms)

    def purge(self, task_ids: Iterable[str], *, before_ms: int, tenant: str) -> int:
        """How many dead letters of these are deleted."""
        found = [task for task in (self._of(tenant, each) for each in dict.fromkeys(task_ids)) if task is not None]
        letters = [task.id for task in found if self._is_letter(task, before_ms)]
        for task_id in letters:
            del self.tasks[task_id]
        return len(letters)

    def letters(self, tenant: str, *, spilled: bool) -> list[str]:
        """Dead letters of a tenant, the oldest first; or only those that were spilled."""
        found = [
            task
            for task in self.tasks.values()
            if task.tenant == tenant and self._is_letter(task, 0)
            if task.spilled or not spilled
        ]
        return [task.id for task in sorted(found, key=lambda task: (task.finished_ms, task.id))]

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
                task.past += 1
                self._requeue(task, delay_ms=0, met=True)
        del self.beats[worker]
        return True

    def goodbye(self, worker: str) -> bool:
        if self.held(worker):
            return False
        self.beats.pop(worker, None)
        return True

    def promote(self) -> None:
        """In the order in which it was due: whoever of a concurrency key comes first may have the place."""
        now = self._clock()
        waiting = [task for task in self.tasks.values() if task.status in WAITING]
        for task in sorted(waiting, key=lambda task: (self._due_ms(task) or 0, task.id)):
            if self.has_expired(task):
                self._end(task, Status.EXPIRED)
            elif task.status in (Status.SCHEDULED, Status.RETRYING) and task.due_ms <= now:
                self._enqueue(task)

    def has_expired(self, task: Task) -> bool:
        return task.unmet_deadline_ms is not None and task.unmet_deadline_ms <= self._clock()

    def expire(self, task: Task) -> None:
        assert task.status is Status.QUEUED
        assert self.has_expired(task)
        self._end(task, Status.EXPIRED)

    def next_due_ms(self) -> int:
        """0: nothing is due ever."""
        times = [self._due_ms(task) for task in self.tasks.values() if task.status in WAITING]
        return min((at for at in times if at is not None), default=0)

    def _due_ms(self, task: Task) -> int | None:
        """When next something must happen to one that waits; None: nothing by time."""
        times = (task.unmet_deadline_ms, None if task.status is Status.QUEUED else task.due_ms)
        return min((at for at in times if at is not None), default=None)

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
        task.status, task.finished_ms = status, self._clock()
        task.purge_ms = self._clock() + (DEAD_RETENTION_MS if status is Status.FAILED else RETENTION_MS)
        self._unblock(task)

    def _requeue(self, task: Task, *, delay_ms: int, met: bool) -> None:
        task.worker = ""
        task.met = task.met or met
        task.due_ms = self._clock() + delay_ms
        if delay_ms:
            task.status = Status.RETRYING
            self._unblock(task)
        else:
            task.status = Status.QUEUED  # it keeps its place

    def _enqueue(self, task: Task) -> None:
        task.status, task.blocked = Status.QUEUED, True
        if task.group is None or self._places_taken(task.group) < task.at_a_time:
            task.blocked = False
            return
        queued = [
            each
            for each in self.tasks.values()
            if each.group == task.group and each.status is Status.QUEUED and each is not task
        ]
        if any(each.blocked and each.score <= task.score for each in queued):
            return
        last = max((each for each in queued if not each.blocked), key=lambda each: each.order, default=task)
        if last.score > task.score:  # which waits in its stead
            last.blocked, task.blocked = True, False

    def _places_taken(self, group: Group) -> int:
        return sum(
            task.group == group and (task.status in HELD or (task.status is Status.QUEUED and not task.blocked))
            for task in self.tasks.values()
        )

    def _unblock(self, gone: Task) -> None:
        """One of a group needs no place any more: the next one takes it."""
        gone.blocked = False
        if gone.group is None:
            return
        for task in sorted(self.tasks.values(), key=lambda task: task.order):
            if task.group == gone.group and task.status is Status.QUEUED and task.blocked:
                if self._places_taken(task.group) >= task.at_a_time:
                    break
                task.blocked = False


def tokens(worker: str, claimed: Iterable[Claimed]) -> list[Token]:
    return [Token(task.id, worker, task.epoch) for task in claimed]

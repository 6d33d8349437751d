"""A life of the store, step by step, and what must be true after each step; test_model.py lets Hypothesis choose."""

from taskgate.contract.models import TaskRecord
from taskgate.contract.states import FINAL, Status
from tests.contract import invariants, orders
from tests.contract.conftest import submission
from tests.contract.life_clients import Clients
from tests.contract.life_common import POLICIES, WORKERS
from tests.contract.life_supervisors import Supervisors, competitors
from tests.contract.reference import HELD, Task


class Life(Clients, Supervisors):
    """One store, three supervisors, clients. Store and reference make every step, and their answers must agree."""

    def __init__(self, redis_url: str) -> None:
        super().__init__(redis_url)
        for worker in WORKERS:
            self.beat(worker, 0, False)
        self.work("w1", [], sync=1, fresh=0, **{"async": 1})

    def work(self, worker: str, ends: list[tuple[str, int]], **free: int) -> None:
        """As most of a life goes: claim and finish. What goes beyond `ends` is left running."""
        if not self._reference.ready():
            for name, tenant in (("echo", "a"), ("echo", "b"), ("get", "a"), ("once", "a"), ("other", "b")):
                self._submit([submission(name, tenant=tenant)], max_attempts=3, policy=POLICIES["none"])
        before = len(self._tokens)
        self.claim(worker, alone=1, **free)
        for token, (outcome, delay_ms) in zip(self._tokens[before:], ends, strict=False):
            self._finish(token, outcome, delay_ms=delay_ms, repeat=False)

    def time_passes(self, by_ms: int, due: bool, trim: bool, repeat: bool) -> None:
        """Redis' clock may also jump: that ends no attempt, and breaks nothing. What is due may be noticed later."""
        self.now_ms += by_ms
        if due:
            self._reference.promote()
            wanted = self.now_ms, self._reference.next_due_ms()
            assert self._run(self._store.promote(0)) == wanted
            assert self._again(repeat, lambda: self._store.promote(0)) in (None, wanted)
        if trim:
            assert self._run(self._store.trim(0)) == self._reference.trim()

    def check(self) -> None:
        """What is stored agrees with itself, and with the reference."""
        found = self._run(invariants.check(self._redis, self._store))
        self._look_at_capped(found)
        blocked = orders.members(found, "blocked:").values()
        assert {task_id for ids in blocked for task_id in ids} == self._reference.blocked()
        ids = list(dict.fromkeys(self._submitted))
        for task_id, record in zip(ids, self._read(ids), strict=True):
            task = self._reference.tasks.get(task_id)
            assert (task is None) == (record is None), f"kept or trimmed: {record}"
            if task is not None and record is not None:
                _compare(task, record)
                self._check_life(record)
        self._fairness.only(competitors(self._group, self._open()))

    def _check_life(self, record: TaskRecord) -> None:
        version, status = self._versions.get(record.id, (0, record.status))
        assert record.version > version or (record.version, record.status) == (version, status), "versions grow"
        self._versions[record.id] = record.version, record.status
        if record.status in FINAL:
            end = record.purge_ms, record.status
            assert self._ends.setdefault(record.id, end) == end, "a final state changed"
        else:
            assert record.id not in self._ends, "a final state was left"


def _compare(task: Task, record: TaskRecord) -> None:
    seen = record.status, record.attempt, record.epoch, record.deadline_ms, record.created_ms
    assert seen == (task.status, task.attempt, task.epoch, task.deadline_ms or 0, task.created_ms)
    if task.status in HELD:
        assert record.worker == task.worker
    if task.status in (Status.SCHEDULED, Status.RETRYING):
        assert record.due_ms == task.due_ms
    if task.status in FINAL:
        assert record.purge_ms == task.purge_ms
    assert record.has_result == (task.status is Status.SUCCEEDED)

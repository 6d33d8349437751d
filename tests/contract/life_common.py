"""What every step of a life needs: the store and its reference, a clock, policies, what was submitted and claimed."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from redis.asyncio import Redis

from taskgate.contract.models import BeatValue, Served, Submission, TaskRecord
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from taskgate.footprint import TASK_BYTES
from taskgate.policy import Policy
from tests.contract import invariants
from tests.contract.fairness import Fairness
from tests.contract.reference import DEAD_RETENTION_MS, HELD, RETENTION_MS, Group, Lane, Reference, Task, Token
from workers.turns import Turns

T = TypeVar("T")

SERVED = [
    Served(queue, name, kind)
    for queue in ("default", "second")
    for name, kind in (("echo", "sync"), ("other", "sync"), ("get", "async"), ("once", "fresh"))
]
WORKERS = ("w1", "w2", "w3")
POLICIES = {
    name: Policy.model_validate(said)
    for name, said in {
        "none": {},
        "small queues": {"queues": {"*": {"limit_tasks": 3}, "second": {"limit_bytes": 3 * 2100}}},
        "small tenants": {"tenants": {"*": {"limit_tasks": 4}, "b": {"limit_bytes": 2 * 2100}}},
        "short waits": {"queues": {"second": {"limit_wait_s": 1}}, "tenants": {"*": {"limit_wait_s": 0.5}}},
        "slow": {"tenants": {"*": {"rate_per_s": 0.05, "burst": 3}, "a": {"rate_per_s": 2, "burst": 5}}},
        "nothing": {"queues": {"*": {"limit_bytes": 1}}},
        "spill": {"queues": {"*": {"limit_tasks": 3, "on_full": "spill", "spill_tasks": 5, "spill_bytes": 4 * 2100}}},
        "wait": {"queues": {"*": {"limit_tasks": 4, "limit_bytes": 4 * 2100, "on_full": "wait"}}},
        "all at once": {
            "queues": {"*": {"limit_tasks": 5, "on_full": "spill"}, "second": {"limit_tasks": 3, "on_full": "wait"}},
            "tenants": {"a": {"rate_per_s": 0.5, "burst": 8, "limit_tasks": 4}},
        },
        "weights": {"tenants": {"a": {"weight": 3}}},
        "few at a time": {"tenants": {"*": {"concurrency": 1}, "a": {"concurrency": 2, "weight": 0.5}}},
    }.items()
}
"""What gateways and supervisors may go by, one after the other."""


class Common:
    """One store, and the reference that says what it should do."""

    def __init__(self, redis_url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._redis = Redis.from_url(redis_url, protocol=2)
        self._run(self._redis.flushall())
        self.now_ms = 1_800_000_000_000
        self._store = Store(
            self._redis, clock=self._clock, retention_ms=RETENTION_MS, dead_retention_ms=DEAD_RETENTION_MS
        )
        self._reference = Reference(SERVED, self._clock)
        self._fairness = Fairness()
        self._turns = Turns()
        """Of queues, as one supervisor keeps them."""
        self._policy = POLICIES["none"]
        self._most: dict[str, int] = {}
        self._capped: set[tuple[str, str]] = set()
        """Tenants, and `queue:lane` each, that have left a lane for their limit."""
        self._submitted: list[str] = []
        self._tokens: list[Token] = []
        self._values: dict[str, list[BeatValue]] = defaultdict(list)
        """Beat values that others may have watched, the newest last."""
        self._versions: dict[str, tuple[int, Status]] = {}
        self._ends: dict[str, tuple[int, Status]] = {}
        """Purge time and status of every task that has ended."""

    def close(self) -> None:
        self._run(self._redis.aclose())
        self._loop.close()

    def _clock(self) -> int:
        return self.now_ms

    def _run(self, call: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
        return self._loop.run_until_complete(call)

    def _again(self, repeat: bool, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Send it again, if its reply was lost: nothing changes. The second answer."""
        if not repeat:
            return None
        before = self._durable()
        second = self._run(call())
        assert self._durable() == before, "a repeat had a second effect"
        return second

    def _durable(self) -> dict[str, Any]:
        """All that is stored, but liveness keys: those end by real time, of which a slow machine lets much pass."""
        found = self._run(invariants.everything(self._redis))
        return {key: value for key, value in found.items() if not key.endswith(":alive")}

    def _task(self, item: Submission, *, max_attempts: int) -> Task:
        start = self.now_ms + item.delay_ms
        return Task(
            id=item.id,
            lane=Lane(item.queue, item.type, alone=False),
            tenant=item.tenant,
            created_ms=self.now_ms,
            score=self.now_ms - item.priority * 60_000,
            max_attempts=max_attempts,
            status=Status.SCHEDULED if item.delay_ms else Status.QUEUED,
            due_ms=start,
            deadline_ms=self.now_ms + item.deadline_ms if item.deadline_ms else None,
            bytes=TASK_BYTES + len(item.payload),
            unique_key=item.unique_key,
            group=Group(item.tenant, item.type, item.concurrency_key) if item.concurrency_key else None,
            at_a_time=item.concurrency,
        )

    def _status(self, task_id: str) -> Status | None:
        return self._reference.tasks[task_id].status if task_id in self._reference.tasks else None

    def _picked(self, pick: int, whose: str) -> Token:
        """Counted back from the newest: of holders, of those whose task has another holder (`past`), or of all."""
        held = {task_id for task_id, task in self._reference.tasks.items() if task.status in HELD}
        chosen = [
            token
            for token in self._tokens
            if whose == "any"
            or (token.task_id in held and (self._reference.refusal(token) is None) == (whose == "holder"))
        ] or self._tokens
        return chosen[-1 - pick % len(chosen)]

    def _some_id(self, pick: int) -> str:
        chosen = self._submitted
        return chosen[-1 - pick % len(chosen)]

    def _read(self, ids: list[str]) -> list[TaskRecord | None]:
        return self._run(self._store.read(ids)) if ids else []

"""A life of the store, step by step, and what must be true after each step; test_model.py lets Hypothesis choose."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract.errors import (
    IdempotencyConflict,
    NoSuchWorker,
    NotCancelable,
    NotDead,
    NotFinished,
    Refused,
    TaskNotFound,
    UniqueConflict,
)
from taskgate.contract.models import (
    Accepted,
    BeatValue,
    Finish,
    HandBack,
    Held,
    Mark,
    Pace,
    QueueLimits,
    Report,
    Served,
    Submission,
    Taken,
    TaskRecord,
)
from taskgate.contract.shares import OTHERS, Share, shares
from taskgate.contract.states import FINAL, Status
from taskgate.contract.store import Store
from taskgate.policy import Policy, limits
from tests.contract import invariants, orders
from tests.contract.admission import TASK_BYTES
from tests.contract.conftest import LEASE_MS, submission, worker_info
from tests.contract.fairness import Fairness
from tests.contract.reference import (
    DEAD_RETENTION_MS,
    HELD,
    RETENTION_MS,
    Answer,
    Group,
    Lane,
    Reference,
    Task,
    Token,
    tokens,
)

T = TypeVar("T")
Ready = Mapping[tuple[Lane, str], list[str]]
"""Ids by lane and tenant, in their order."""

SERVED = [
    Served(queue, name, kind)
    for queue in ("default", "second")
    for name, kind in (("echo", "sync"), ("other", "sync"), ("get", "async"), ("once", "fresh"))
]
WORKERS = ("w1", "w2", "w3")
RETRY_CAP_MS = 60_000
PACE_FIELDS = ("drain_at", "drain_n", "drain_rate")
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

REFUSALS = {TaskNotFound: "not_found", NotDead: "not_dead", UniqueConflict: "unique_conflict"}
CONCURRENCY = {"any": {}, "one echo": {"echo": 1}, "few": {"echo": 2, "get": 1, "once": 1}}
"""So many of a type run at a time, as its handler says."""


class Life:
    """One store, three supervisors, clients. Store and reference make every step, and their answers must agree."""

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
        self._policy = POLICIES["none"]
        self._most: dict[str, int] = {}
        self._capped: set[tuple[str, str]] = set()
        """Tenants, and `queue:lane` each, that have left a lane for their limit."""
        self._submitted: list[str] = []
        self._sent: list[Submission] = []
        self._tokens: list[Token] = []
        self._values: dict[str, list[BeatValue]] = defaultdict(list)
        """Beat values that others may have watched, the newest last."""
        self._versions: dict[str, tuple[int, Status]] = {}
        self._ends: dict[str, tuple[int, Status]] = {}
        """Purge time and status of every task that has ended."""

        for worker in WORKERS:
            self.beat(worker, 0, False)
        self.work("w1", [], sync=1, fresh=0, **{"async": 1})

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

    def submit(
        self,
        *,
        name: str,
        tenants: str,
        count: int,
        max_attempts: int,
        key: str,
        body: str,
        policy: str,
        others: str,
        repeat: bool,
        **more: Any,
    ) -> None:
        """Of `tenants` in turn."""
        items = [
            submission(name, key=key, body=body, max_attempts=max_attempts, tenant=tenants[n % len(tenants)], **more)
            for n in range(count)
        ]
        replies = self._submit(items, max_attempts=max_attempts, policy=POLICIES[policy], others=others)
        accepted = [item for item, reply in zip(items, replies, strict=True) if reply.task_id == item.id]
        if accepted:
            second = self._again(repeat, lambda: self._store.submit(accepted, limits(POLICIES[policy], QueueLimits())))
            assert second in (None, [Accepted(item.id, replayed=False) for item in accepted])

    def _submit(self, items: list[Submission], *, max_attempts: int, policy: Policy, others: str = "") -> list[Answer]:
        leaving, held = self._leaving(), dict[str, str]()
        goes_by = limits(policy, QueueLimits())
        replies = self._run(self._store.submit(items, goes_by.where_others_wait(others) if others else goes_by))
        answers = [_answer(item, reply) for item, reply in zip(items, replies, strict=True)]
        for item, answer, reply in zip(items, answers, replies, strict=True):
            task = self._task(item, max_attempts=max_attempts)
            excess_ms = self._reference.rates.excess_ms(item.tenant, policy.tenant(item.tenant), self.now_ms)
            wanted = self._reference.submit(
                task,
                key=item.idempotency_key,
                fingerprint=item.fingerprint,
                on_conflict=item.on_conflict,
                policy=policy,
                leaving=leaving,
                others=others,
                held=held,
            )
            assert answer == wanted
            if isinstance(reply, Refused):
                assert excess_ms <= reply.retry_after_s * 1000 <= max(RETRY_CAP_MS, excess_ms + 1)
            if answer.task_id == item.id:
                self._submitted.append(item.id)
        return answers

    def _leaving(self) -> Callable[[str, str], float | None]:
        """How many leave a second, as measured until now: it is what the store goes by that counts."""
        usage = {name.decode(): value for name, value in self._run(invariants.usage(self._redis)).items()}
        idle = {
            (kind, name)
            for kind, name in (("queue", "default"), ("queue", "second"), ("tenant", "a"), ("tenant", "b"))
            if self._reference.used(kind, name, None).queued == 0
        }

        def leaving(kind: str, name: str) -> float | None:
            measured = name if kind == "queue" else f"tenant:{name}"
            at, n, rate = (usage.get(f"{field}:{measured}") for field in PACE_FIELDS)
            return Pace(
                now_ms=self.now_ms,
                since_ms=self.now_ms if at is None or (kind, name) in idle else int(float(at)),
                left=int(n or 0),
                per_s=None if rate is None else float(rate),
                waiting=0,
                lanes=0,
                tenants=0,
            ).leaving_per_s()

        return leaving

    def beat(self, worker: str, forgotten: int, foreign: bool) -> None:
        """Some claims are not named (their reply was lost), and some that are named belong to others by now."""
        own = sorted(self._reference.held(worker))
        stale = [each for each in self._tokens if each.worker == worker and each not in own][-2:] if foreign else []
        named = own[forgotten:] + stale
        names = [Held(each.task_id, each.epoch) for each in named]
        info = msgspec.structs.replace(
            worker_info(worker), types=["echo:0", "other:0", "get:0", "once:0"], queues=["default", "second"]
        )
        call = self._store.beat(0, info, held=names, served=self._served(), shares=_shares(self._policy))
        answer = self._run(call)
        before = self._reference.beats.get(worker)
        assert before is None or answer.counter == before.counter + 1
        self._reference.beats[worker] = BeatValue(answer.counter, LEASE_MS)
        self._values[worker].append(answer.beats[worker])
        assert answer.beats == self._reference.beats
        assert answer.lost == [Held(each.task_id, each.epoch) for each in stale]
        assert sorted(answer.unknown) == [Held(each.task_id, each.epoch) for each in own[:forgotten]]
        canceling = {each.task_id for each in named if self._status(each.task_id) is Status.CANCELING}
        assert set(answer.canceling) == canceling - {each.task_id for each in stale}
        assert answer.next_due_ms == self._reference.next_due_ms()
        self._look_at_capped()
        for tenant, _ in self._capped:
            assert self._is_full(tenant), f"{tenant} waits for a limit that is no more"
        open_lanes = {lane for lane, tenant in self._reference.ready() if (tenant, _named(lane)) not in self._capped}
        assert answer.claimable == any(self._reference.slot(lane) for lane in open_lanes)

    def _status(self, task_id: str) -> Status | None:
        return self._reference.tasks[task_id].status if task_id in self._reference.tasks else None

    def allow(self, policy: str, concurrency: str) -> None:
        """All supervisors are started again with other limits and weights; what runs goes on."""
        self._policy, self._most = POLICIES[policy], CONCURRENCY[concurrency]
        self._fairness.restart()

    def _served(self) -> list[Served]:
        return [each._replace(concurrency=self._most.get(each.type, 0)) for each in SERVED]

    def _look_at_capped(self) -> None:
        self._capped = {
            (tenant, lane.decode())
            for tenant in "ab"
            for lane in self._run(invariants.set_of(self._redis, f"capped:{tenant}"))
        }

    def _is_full(self, tenant: str) -> bool:
        most = self._policy.tenant(tenant).concurrency
        return most is not None and sum(task.tenant == tenant for task in self._reference.running()) >= most

    def _is_closed(self, task_type: str) -> bool:
        most = self._most.get(task_type)
        return most is not None and sum(task.lane.type == task_type for task in self._reference.running()) >= most

    def _open(self, hindered: Collection[str] = ()) -> Ready:
        """Of what is ready, what no limit holds up; `hindered`: nor what needs such slots."""
        return {
            (lane, tenant): ids
            for (lane, tenant), ids in self._reference.ready().items()
            if not (
                self._is_full(tenant)
                or self._is_closed(lane.type)
                or (tenant, _named(lane)) in self._capped
                or self._reference.slot(lane) in hindered
            )
        }

    def claim(self, worker: str, *, fresh_takes: int = 1, **free: int) -> None:
        """One that was reaped, or has left, notices and beats again first."""
        if worker not in self._reference.beats:
            with pytest.raises(NoSuchWorker):
                self._claim(worker, fresh_takes, free)
            self.beat(worker, 0, False)

        def hindered() -> set[str]:
            return {"fresh"} if free["fresh"] == 0 or free["sync"] < fresh_takes else set()

        ready, before = self._reference.ready(), self._open(hindered())
        taken = self._claim(worker, fresh_takes, free)
        claimed = tokens(worker, taken)
        for token in claimed:
            task = self._reference.tasks[token.task_id]
            assert not self._is_full(task.tenant), "more of a tenant than may run"
            assert not self._is_closed(task.lane.type), "more of a type than may run"
            slot = str(self._reference.slot(self._reference.start(token).lane))
            free[slot] -= 1
            free["sync"] -= fresh_takes if slot == "fresh" else 0
        self._tokens += claimed
        self._expire_at_the_claim()
        assert min(free.values()) >= 0, "more than there are slots"
        for place, ids in ready.items():
            gone = [task_id for task_id in ids if task_id not in self._reference.ready().get(place, [])]
            assert gone == ids[: len(gone)], "not in the order of their scores"
        after = self._open()
        idle = {slot for slot, left in free.items() if left > 0} - hindered()
        assert not idle & {self._reference.slot(lane) for lane, _ in after}, "slots stay free though something waits"
        assert taken.fresh_waits >= any(self._reference.slot(lane) in hindered() for lane, _ in after)
        self._look_at_capped()
        self._check_fairness(claimed, before, self._open(hindered()))

    def _claim(self, worker: str, fresh_takes: int, free: dict[str, int]) -> Taken:
        return self._run(
            self._store.claim(
                0,
                worker,
                served=self._served(),
                free_sync=free["sync"],
                free_async=free["async"],
                free_alone=free["alone"],
                free_fresh=free["fresh"],
                fresh_takes=fresh_takes,
                lease_ms=LEASE_MS,
                shares=_shares(self._policy),
            )
        )

    def _expire_at_the_claim(self) -> None:
        """The claim meets tasks whose deadline has passed: which, only its order tells."""
        waiting = [task for task in self._reference.tasks.values() if task.status is Status.QUEUED]
        for task, record in zip(waiting, self._read([task.id for task in waiting]), strict=True):
            if record is not None and record.status is Status.EXPIRED:
                self._reference.expire(task)

    def _check_fairness(self, claimed: list[Token], before: Ready, after: Ready) -> None:
        """Tenants compete within a lane by their weights, lanes within what needs the same slots of a queue."""
        taken = [self._reference.tasks[token.task_id] for token in claimed]
        by_tenant = Counter((str(task.lane), task.tenant) for task in taken)
        by_lane = Counter((self._group(task.lane), str(task.lane)) for task in taken)
        had, has = _competitors(self._group, before), _competitors(self._group, after)
        weights = {tenant: self._policy.tenant(tenant).weight for tenant in "ab"}
        for group, competitors in had.items():
            given = {who: count for (where, who), count in (by_tenant | by_lane).items() if where == group}
            self._fairness.took(group, competitors, given, has.get(group, set()), weights)
        self._fairness.only(has)

    def _group(self, lane: Lane) -> str:
        slot = self._reference.slot(lane)
        return f"{lane.queue}:{'sync' if slot == 'fresh' else slot}"

    def work(self, worker: str, ends: list[tuple[str, int]], **free: int) -> None:
        """As most of a life goes: claim and finish. What goes beyond `ends` is left running."""
        if not self._reference.ready():
            for name, tenant in (("echo", "a"), ("echo", "b"), ("get", "a"), ("once", "a"), ("other", "b")):
                self._submit([submission(name, tenant=tenant)], max_attempts=3, policy=POLICIES["none"])
        before = len(self._tokens)
        self.claim(worker, alone=1, **free)
        for token, (outcome, delay_ms) in zip(self._tokens[before:], ends, strict=False):
            self._finish(token, outcome, delay_ms=delay_ms, repeat=False)

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

    def finish(self, pick: int, whose: str, outcome: str, delay_ms: int, repeat: bool, **submitted: Any) -> None:
        """By any token ever given: those of a supervisor that was frozen and wakes, too."""
        self._finish(self._picked(pick, whose), outcome, delay_ms=delay_ms, repeat=repeat, **submitted)

    def _finish(
        self,
        token: Token,
        outcome: str,
        *,
        delay_ms: int,
        repeat: bool,
        submits: int = 0,
        unique: str = "",
        on_conflict: str = "return",
    ) -> None:
        task = self._reference.tasks.get(token.task_id)
        items = [
            submission("echo", tenant="a", delay_ms=delay_ms, unique_key=unique, on_conflict=on_conflict)
            for _ in range(submits)
        ]
        item = Finish(
            id=token.task_id,
            epoch=token.epoch,
            outcome=outcome,
            result=b'"done"' if outcome == "succeeded" else b"",
            error=b'{"kind":"exception"}' if outcome in ("failed", "retry") else b"",
            retry_delay_ms=delay_ms,
            max_attempts=task.max_attempts if task else 3,
            retention_ms=RETENTION_MS,
            dead_retention_ms=DEAD_RETENTION_MS,
            submitted=items,
        )

        async def call() -> list[str]:
            return await self._store.finish(0, token.worker, [item])

        wanted = self._reference.finish(
            token,
            outcome,
            delay_ms=delay_ms,
            submitted=[(self._task(each, max_attempts=3), each.on_conflict) for each in items],
        )
        assert self._run(call()) == [wanted]
        self._submitted += [each.id for each in items if each.id in self._reference.tasks]
        assert self._again(repeat, call) in (None, [wanted if wanted in ("stale", "not_found") else "done"])

    def hand_back(self, pick: int, whose: str, delay_ms: int, ran: bool, reason: str, repeat: bool) -> None:
        token = self._picked(pick, whose)
        item = HandBack(
            id=token.task_id,
            epoch=token.epoch,
            delay_ms=delay_ms,
            ran=ran,
            reason=reason,
            retention_ms=RETENTION_MS,
        )

        async def call() -> list[str]:
            return await self._store.hand_back(0, token.worker, [item])

        wanted = self._reference.hand_back(token, delay_ms=delay_ms, ran=ran, reason=reason)
        assert self._run(call()) == [wanted]
        assert self._again(repeat, call) in (None, [wanted if wanted in ("stale", "not_found") else "done"])

    def report(self, pick: int, whose: str, number: int, repeat: bool) -> None:
        token = self._picked(pick, whose)
        item = Report(
            id=token.task_id,
            epoch=token.epoch,
            number=number,
            progress=b'{"current":1}',
            health="waiting",
            logs=[(b"{}", 700)] * (number % 3),
        )

        async def call() -> list[str]:
            return await self._store.report(0, token.worker, [item])

        wanted = self._reference.report(token, number)
        assert self._run(call()) == [wanted]
        assert self._again(repeat, call) in (None, [wanted if wanted in ("stale", "not_found") else "done"])

    def _some_id(self, pick: int) -> str:
        chosen = self._submitted
        return chosen[-1 - pick % len(chosen)]

    def cancel(self, pick: int, whose: str, repeat: bool) -> None:
        task_id = self._picked(pick, whose).task_id if whose == "holder" else self._some_id(pick)

        async def call() -> str:
            try:
                return str(await self._store.cancel(task_id))
            except (TaskNotFound, NotCancelable) as error:
                return "not_found" if isinstance(error, TaskNotFound) else "final"

        wanted = self._reference.cancel(task_id)
        assert self._run(call()) == wanted
        assert self._again(repeat, call) in (None, wanted)

    def redrive(self, pick: int, whose: str, request: str, policy: str, repeat: bool) -> None:
        dead = [task_id for task_id in self._submitted if self._status(task_id) is Status.FAILED and whose == "holder"]
        task_id = dead[-1 - pick % len(dead)] if dead else self._some_id(pick)
        self._redrive([task_id], request, policy, repeat)

    def redrive_letters(
        self, tenant: str, request: str, policy: str, *, before_ms: int, first_ms: int, rate_per_s: float, repeat: bool
    ) -> None:
        """What a filter has found, and some that it has not; starts one after the other if there is a rate."""
        some = [*self._reference.letters("a", spilled=False), *self._reference.letters("b", spilled=False)]
        some = [*some[:6], *self._submitted[-3:]]
        more: dict[str, Any] = {"before_ms": self.now_ms + before_ms, "tenant": tenant}
        if rate_per_s:
            more |= {"first_ms": self.now_ms + first_ms, "rate_per_s": rate_per_s}
        self._redrive(list(dict.fromkeys(some)), request, policy, repeat, **more)

    def _redrive(
        self,
        ids: list[str],
        request: str,
        policy: str,
        repeat: bool,
        *,
        first_ms: int = 0,
        rate_per_s: float = 0,
        **only: Any,
    ) -> None:
        leaving, started = self._leaving(), 0
        before = {task_id: self._status(task_id) for task_id in ids}

        async def call(of: list[str]) -> list[str]:
            return [
                "ok" if refused is None else refused.limit if isinstance(refused, Refused) else REFUSALS[type(refused)]
                for refused in await self._store.redrive_letters(
                    of,
                    request_id=request,
                    limits=limits(POLICIES[policy], QueueLimits()),
                    first_ms=first_ms,
                    rate_per_s=rate_per_s,
                    **only,
                )
            ]

        answers = self._run(call(ids))
        for task_id, answer in zip(ids, answers, strict=True):
            start_ms = first_ms + int(started * 1000 / rate_per_s) if rate_per_s else 0
            assert answer == self._reference.redrive(
                task_id, request, policy=POLICIES[policy], leaving=leaving, start_ms=start_ms, **only
            )
            if answer == "ok" and before[task_id] is Status.FAILED:
                started += 1
                self._ends.pop(task_id, None)
        done = [task_id for task_id, answer in zip(ids, answers, strict=True) if answer == "ok"]
        if done:
            assert self._again(repeat, lambda: call(done)) in (None, ["ok"] * len(done))

    def purge(self, tenant: str, before_ms: int, repeat: bool) -> None:
        ids = list(dict.fromkeys([*self._reference.letters(tenant, spilled=False)[:3], *self._submitted[-2:]]))

        async def call() -> int:
            return await self._store.purge_letters(ids, before_ms=self.now_ms + before_ms, tenant=tenant)

        assert self._run(call()) == self._reference.purge(ids, before_ms=self.now_ms + before_ms, tenant=tenant)
        assert self._again(repeat, call) in (None, 0)

    def letters(self, tenant: str, limit: int, oldest_first: bool, spilled: bool) -> None:
        """All pages of a tenant's dead letters, and what came of their attempts."""
        found: list[str] = []
        mark: Mark | None = Mark()
        while mark is not None:
            page = self._run(
                self._store.page(
                    0,
                    tenant,
                    start=mark,
                    limit=limit,
                    letters=True,
                    oldest_first=oldest_first,
                    kind="overflow" if spilled else "",
                )
            )
            found += page.ids
            mark = page.last
        wanted = self._reference.letters(tenant, spilled=spilled)
        assert found == (wanted if oldest_first else wanted[::-1])
        for task_id in found[:2]:
            history = self._run(self._store.history(task_id))
            assert len(history.attempts) + history.lost == self._reference.tasks[task_id].past

    def delete(self, pick: int, repeat: bool) -> None:
        task_id = self._some_id(pick)

        async def call() -> str:
            try:
                await self._store.delete(task_id)
            except (TaskNotFound, NotFinished) as error:
                return "not_found" if isinstance(error, TaskNotFound) else "not_finished"
            return "ok"

        wanted = self._reference.delete(task_id)
        assert self._run(call()) == wanted
        assert self._again(repeat, call) in (None, "not_found" if wanted == "ok" else wanted)

    def pages(self, tenant: str, limit: int) -> None:
        """All pages of a tenant's list together."""
        found: list[str] = []
        mark: Mark | None = Mark()
        while mark is not None:
            page = self._run(self._store.page(0, tenant, start=mark, limit=limit))
            assert page.scanned == len(page.ids) <= limit
            found += page.ids
            mark = page.last
        assert found == self._reference.newest_first(tenant)

    def reap(self, worker: str, pick: int, repeat: bool) -> None:
        """By the value that another one watched: of this beat, or of one before, since which it has lived on."""
        seen = self._values[worker] or [BeatValue(1, LEASE_MS)]
        watched = seen[-1 - pick % len(seen)]

        async def call() -> int | None:
            return await self._store.reap(0, worker, watched=watched)

        wanted = 0 if self._reference.reap(worker, watched) else None
        assert self._run(call()) == wanted
        assert self._again(repeat, call) is None

    def goodbye(self, worker: str) -> None:
        """Refused to one that holds something."""
        assert self._run(self._store.goodbye(0, worker)) == self._reference.goodbye(worker)

    def fail_unserved(self, worker: str, name: str) -> None:
        lane = Lane("default", name, alone=False)
        call = self._store.fail_unserved(0, worker, queue=lane.queue, task_type=name, after_s=60)
        assert self._run(call) == self._reference.fail_unserved(worker, lane)

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

    def _read(self, ids: list[str]) -> list[TaskRecord | None]:
        return self._run(self._store.read(ids)) if ids else []

    def check(self) -> None:
        """What is stored agrees with itself, and with the reference."""
        found = self._run(invariants.check(self._redis, self._store))
        self._look_at_capped()
        blocked = orders.members(found, "blocked:").values()
        assert {task_id for ids in blocked for task_id in ids} == self._reference.blocked()
        ids = list(dict.fromkeys(self._submitted))
        for task_id, record in zip(ids, self._read(ids), strict=True):
            task = self._reference.tasks.get(task_id)
            assert (task is None) == (record is None), f"kept or trimmed: {record}"
            if task is not None and record is not None:
                _compare(task, record)
                self._check_life(record)
        self._fairness.only(_competitors(self._group, self._open()))

    def _check_life(self, record: TaskRecord) -> None:
        version, status = self._versions.get(record.id, (0, record.status))
        assert record.version > version or (record.version, record.status) == (version, status), "versions grow"
        self._versions[record.id] = record.version, record.status
        if record.status in FINAL:
            end = record.purge_ms, record.status
            assert self._ends.setdefault(record.id, end) == end, "a final state changed"
        else:
            assert record.id not in self._ends, "a final state was left"


def _competitors(group: Callable[[Lane], str], ready: Ready) -> dict[str, set[str]]:
    """Who has something to take: tenants by lane, and lanes by what they compete for."""
    found: dict[str, set[str]] = defaultdict(set)
    for lane, tenant in ready:
        found[str(lane)].add(tenant)
        found[group(lane)].add(str(lane))
    return found


def _named(lane: Lane) -> str:
    return f"{lane.queue}:{lane.type}{'!alone' if lane.alone else ''}"


def _shares(policy: Policy) -> str:
    """As supervisors turn a policy into what a claim goes by."""

    def share(name: str) -> Share:
        said = policy.tenant(name)
        return Share(said.weight, said.concurrency or 0)

    return shares({name: share(name) for name in policy.tenants if name != OTHERS}, share(OTHERS))


def _answer(item: Submission, reply: Accepted | Refused | IdempotencyConflict | UniqueConflict) -> Answer:
    match reply:
        case Accepted(task_id=task_id):
            kinds = {"existing": reply.existing, "replay": reply.replayed, "spilled": reply.spilled, "ok": True}
            return Answer(next(kind for kind, is_so in kinds.items() if is_so), task_id)
        case Refused():
            assert (reply.queue, reply.tenant) == (item.queue, item.tenant)
            return Answer(reply.limit, waits=reply.waits)
        case UniqueConflict():
            return Answer("unique_conflict", reply.task_id)
    return Answer("conflict")


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

"""Steps of a life that supervisors make: beat, claim, end, reap; and whether claims keep to limits and shares."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
import pytest

from taskgate.contract.errors import NoSuchWorker
from taskgate.contract.models import BeatValue, Finish, HandBack, Held, Report, Served, Taken
from taskgate.contract.shares import OTHERS, Share, shares
from taskgate.contract.states import Status
from taskgate.policy import Policy
from tests.contract import invariants, orders
from tests.contract.conftest import LEASE_MS, submission, worker_info
from tests.contract.life_common import POLICIES, SERVED, Common
from tests.contract.reference import DEAD_RETENTION_MS, RETENTION_MS, Lane, Token, tokens

Ready = Mapping[tuple[Lane, str], list[str]]
"""Ids by lane and tenant, in their order."""

CONCURRENCY = {"any": {}, "one echo": {"echo": 1}, "few": {"echo": 2, "get": 1, "once": 1}}
"""So many of a type run at a time, as its handler says."""


class Supervisors(Common):
    """What a claim takes is the store's choice: it must be one of those that the reference allows."""

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

    def allow(self, policy: str, concurrency: str) -> None:
        """All supervisors are started again with other limits and weights; what runs goes on."""
        self._fairness.restart(self._weights())
        self._policy, self._most = POLICIES[policy], CONCURRENCY[concurrency]

    def _weights(self) -> dict[str, float]:
        return {tenant: self._policy.tenant(tenant).weight for tenant in "ab"}

    def _served(self) -> list[Served]:
        return [each._replace(concurrency=self._most.get(each.type, 0)) for each in SERVED]

    def _look_at_capped(self, found: Mapping[str, Any] | None = None) -> None:
        """`found`: all that is stored, where it was read already."""
        if found is None:
            found = self._run(invariants.everything(self._redis))
        self._capped = {
            (name.removeprefix("capped:"), lane)
            for name, lanes in orders.members(found, "capped:").items()
            for lane in lanes
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
        self._expire_at_the_claim()  # before what was claimed: it may have the place of one that expired
        for token in claimed:
            task = self._reference.tasks[token.task_id]
            assert not self._is_full(task.tenant), "more of a tenant than may run"
            assert not self._is_closed(task.lane.type), "more of a type than may run"
            slot = str(self._reference.slot(self._reference.start(token).lane))
            free[slot] -= 1
            free["sync"] -= fresh_takes if slot == "fresh" else 0
            if slot != "alone":  # those begin where async ones do
                self._turns.given(0, task.lane.queue, slot)
        self._tokens += claimed
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
                served=self._turns.served(self._served(), 0),
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
        """Tenants compete within a lane by their weights, lanes within what needs the same slots of a queue, and queues
        for slots.
        """
        taken = [self._reference.tasks[token.task_id] for token in claimed]
        by_tenant = Counter((str(task.lane), task.tenant) for task in taken)
        by_lane = Counter((self._group(task.lane), str(task.lane)) for task in taken)
        by_queue = Counter((_slots(self._group(task.lane)), task.lane.queue) for task in taken)
        had, has = competitors(self._group, before), competitors(self._group, after)
        weights = self._weights()
        for group, who_had in had.items():
            given = {who: count for (where, who), count in (by_tenant | by_lane | by_queue).items() if where == group}
            self._fairness.took(group, who_had, given, has.get(group, set()), weights)
        self._fairness.only(has)

    def _group(self, lane: Lane) -> str:
        slot = self._reference.slot(lane)
        return f"{lane.queue}:{'sync' if slot == 'fresh' else slot}"

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

    def finish(self, pick: int, whose: str, outcome: str, delay_ms: int, repeat: bool, **submitted: Any) -> None:
        """By any token ever given: those of a supervisor that was frozen and wakes, too."""
        self._finish(self._picked(pick, whose), outcome, delay_ms=delay_ms, repeat=repeat, **submitted)

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

    def reap(self, worker: str, pick: int, repeat: bool) -> None:
        """By the value that another one watched: of this beat, or of one before, since which it has lived on."""
        seen = self._values[worker] or [BeatValue(1, LEASE_MS)]
        watched = seen[-1 - pick % len(seen)]

        async def call() -> int | None:
            reaped = await self._store.reap(0, worker, watched=watched)
            return None if reaped is None else reaped.remaining

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


def competitors(group: Callable[[Lane], str], ready: Ready) -> dict[str, set[str]]:
    """Who has something to take: tenants by lane, lanes and queues by what they compete for."""
    found: dict[str, set[str]] = defaultdict(set)
    for lane, tenant in ready:
        found[str(lane)].add(tenant)
        found[group(lane)].add(str(lane))
        if not lane.alone:  # where these begin is decided by async ones, too
            found[_slots(group(lane))].add(lane.queue)
    return found


def _slots(group: str) -> str:
    return group.partition(":")[2]


def _named(lane: Lane) -> str:
    return f"{lane.queue}:{lane.type}{'!alone' if lane.alone else ''}"


def _shares(policy: Policy) -> str:
    """As supervisors turn a policy into what a claim goes by."""

    def share(name: str) -> Share:
        said = policy.tenant(name)
        return Share(said.weight, said.concurrency or 0)

    return shares({name: share(name) for name in policy.tenants if name != OTHERS}, share(OTHERS))

"""Steps of a life that clients make: submit, cancel, redrive, delete, look."""

from collections.abc import Callable
from typing import Any

from taskgate.contract.errors import (
    DeadlinePassed,
    IdempotencyConflict,
    NotCancelable,
    NotDead,
    NotFinished,
    Refused,
    TaskNotFound,
    UniqueConflict,
)
from taskgate.contract.models import Accepted, Limits, Mark, Pace, QueueLimits, Submission
from taskgate.contract.states import Status
from taskgate.policy import Policy, limits
from tests.contract import invariants
from tests.contract.conftest import submission
from tests.contract.life_common import POLICIES, Common
from tests.contract.reference import Answer

RETRY_CAP_MS = 60_000
PACE_FIELDS = ("drain_at", "drain_n", "drain_rate")
REFUSALS = {
    TaskNotFound: "not_found",
    NotDead: "not_dead",
    DeadlinePassed: "deadline_passed",
    UniqueConflict: "unique_conflict",
}


class Clients(Common):
    """Store and reference must answer the same."""

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
        replies = self._run(self._store.submit(items, _where_others_wait(goes_by, others)))
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
                told_ms = reply.retry_after_s * 1000
                assert excess_ms - 1e-6 <= told_ms <= max(RETRY_CAP_MS, excess_ms + 1), "but for the noise of a float"
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


def _where_others_wait(goes_by: Limits, others: str) -> Limits:
    on_full = {"behind": "wait", "closed": "refuse"}
    return goes_by.where_others_wait("queue-tasks", on_full=on_full[others]) if others else goes_by


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

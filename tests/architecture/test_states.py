"""The table of transitions is what the scripts do: all of it, and nothing else."""

import random
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis

from taskgate.contract.errors import NoSuchWorker, NotCancelable
from taskgate.contract.models import Claimed
from taskgate.contract.states import FINAL, TRANSITIONS, WAITING, Status
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract import invariants
from tests.contract.conftest import LIMITS, Hand, submission, submit

Moves = set[tuple[Status, Status]]
WALKS = 16
STEPS = 120
TABLE: Moves = {(before, after) for before, allowed in TRANSITIONS.items() for after in allowed}


def test_every_status_stands_in_the_table() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert FINAL | WAITING | {Status.RUNNING, Status.CANCELING} == set(Status)


def test_final_is_for_ever_but_for_redrive() -> None:
    leaving = {status: TRANSITIONS[status] for status in FINAL if TRANSITIONS[status]}
    assert leaving == {Status.FAILED: frozenset({Status.QUEUED, Status.SCHEDULED})}


def test_every_status_leads_to_an_end() -> None:
    ending = set(FINAL)
    for _ in Status:
        ending |= {status for status, after in TRANSITIONS.items() if after & ending}
    assert ending == set(Status)


class Walk:
    """Two supervisors and a client that do what they may at random, and what became of each task at each step."""

    def __init__(self, store: Store, clock: Clock, seed: int) -> None:
        self.seen: Moves = set()
        self._store = store
        self._clock = clock
        self._random = random.Random(seed)
        self._hands = [Hand(store, "w1"), Hand(store, "w2")]
        self._held: list[tuple[Hand, Claimed]] = []
        self._status: dict[str, Status] = {}
        self._number = 0

    async def step(self) -> None:
        moves: list[Callable[[], Awaitable[object]]] = [
            self._submit,
            self._beat,
            self._claim,
            self._claim,
            self._finish,
            self._finish,
            self._hand_back,
            self._reap,
            self._cancel,
            self._redrive,
            self._fail_unserved,
            self._pass_time,
        ]
        await self._random.choice(moves)()
        await self._look()

    async def _look(self) -> None:
        ids = list(self._status)
        for record in await self._store.read(ids) if ids else []:
            assert record is not None
            before = self._status[record.id]
            if record.status is not before:
                self.seen.add((before, record.status))
                self._status[record.id] = record.status

    async def _submit(self) -> None:
        item = submission(
            self._random.choice(["echo", "other", "get"]),
            tenant=self._random.choice("ab"),
            delay_ms=self._random.choice([0, 0, 20]),
            deadline_ms=self._random.choice([0, 0, 10, 60, 60]),
            max_attempts=self._random.choice([1, 3]),
        )
        await submit(self._store, item)
        self._status[item.id] = Status.SCHEDULED if item.delay_ms else Status.QUEUED

    async def _beat(self) -> None:
        await self._random.choice(self._hands).beat()

    async def _claim(self) -> None:
        hand = self._random.choice(self._hands)
        try:
            self._held += [(hand, task) for task in await hand.claim(sync=2, free_async=1)]
        except NoSuchWorker:
            await hand.beat()

    def _one_held(self) -> tuple[Hand, Claimed] | None:
        """Any claim ever made, often a live one: what is stale must change nothing."""
        return self._random.choice(self._held[-6:]) if self._held else None

    async def _finish(self) -> None:
        if held := self._one_held():
            hand, task = held
            outcome = self._random.choice(["succeeded", "failed", "retry", "retry", "canceled"])
            delay_ms = self._random.choice([0, 15])
            await hand.finish(task, outcome, retry_delay_ms=delay_ms, max_attempts=task.spec.max_attempts)

    async def _hand_back(self) -> None:
        if held := self._one_held():
            hand, task = held
            choices = self._random.choice
            await hand.hand_back(task, delay_ms=choices([0, 15, 60]), ran=choices([False, False, True]))

    async def _reap(self) -> None:
        if self._random.random() < 0.3:
            dead, other = self._random.sample(self._hands, 2)
            await other.reap(dead)

    def _one(self) -> str:
        return self._random.choice(list(self._status)[-12:] or [submission().id])

    async def _cancel(self) -> None:
        if self._status:
            try:
                await self._store.cancel(self._one())
            except NotCancelable:
                pass

    async def _redrive(self) -> None:
        if self._status:
            self._number += 1
            at_a_rate = {"first_ms": self._clock.now + 10, "rate_per_s": 1} if self._random.random() < 0.5 else {}
            await self._store.redrive_letters(
                [self._one()],
                request_id=str(self._number),
                limits=LIMITS,
                **at_a_rate,  # type: ignore[arg-type]
            )

    async def _fail_unserved(self) -> None:
        if self._random.random() < 0.3:
            hand = self._random.choice(self._hands)
            await self._store.fail_unserved(0, hand.id, queue="default", task_type="other", after_s=60)

    async def _pass_time(self) -> None:
        self._clock.advance(self._random.choice([1, 5, 20]))
        await self._store.promote(0)


async def test_the_scripts_make_the_transitions_of_the_table_and_no_others(
    store: Store, redis_client: Redis, clock: Clock
) -> None:
    """Many short random lives, in which everything stored must always agree."""
    seen: Moves = set()
    for seed in range(WALKS):
        await redis_client.flushall()
        walk = Walk(store, clock, seed)
        for number in range(STEPS):
            await walk.step()
            if number % 8 == 0:
                await invariants.check(redis_client, store)
        await invariants.check(redis_client, store)
        seen |= walk.seen
    assert seen <= TABLE, f"not in the table: {seen - TABLE}"
    assert seen == TABLE, f"never seen: {TABLE - seen}"

"""A small language for the contract's tests: submit, claim and beat with defaults, on every supported server."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract.ids import key_hash, new_task_id
from taskgate.contract.models import (
    Accepted,
    BeatAnswer,
    BeatValue,
    Claimed,
    Finish,
    HandBack,
    Held,
    Limits,
    Report,
    Served,
    Submission,
    Taken,
    TaskRecord,
    TaskSpec,
    WorkerInfo,
)
from taskgate.contract.store import Store
from tests.contract import invariants

LEASE_MS = 6000
SERVED = [Served("default", "echo", "sync"), Served("default", "other", "sync"), Served("default", "get", "async")]
LIMITS = Limits()


@pytest.fixture(params=["valkey", pytest.param("redis-server", marks=pytest.mark.full)])
def server_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def submission(
    task_type: str = "echo", payload: bytes = b"{}", *, key: str = "", body: str = "", **more: object
) -> Submission:
    """A submission of `task_type`; `more` are fields of Submission or TaskSpec."""
    own = ("delay_ms", "run_at_ms", "deadline_ms", "on_conflict", "concurrency")
    fields = {name: more.pop(name) for name in own if name in more}
    spec = TaskSpec(**{"id": new_task_id(), "type": task_type, **more})  # type: ignore[arg-type]
    return Submission(
        id=spec.id,
        queue=spec.queue,
        type=spec.type,
        tenant=spec.tenant,
        priority=spec.priority,
        spec=msgspec.json.encode(spec),
        payload=payload,
        idempotency_key=hashlib.sha256(key.encode()).hexdigest() if key else "",
        fingerprint=hashlib.sha256(body.encode()).hexdigest(),
        unique_key=key_hash(spec.unique_key),
        concurrency_key=key_hash(spec.concurrency_key),
        **fields,  # type: ignore[arg-type]
    )


def worker_info(worker_id: str, lease_ms: int = LEASE_MS) -> WorkerInfo:
    return WorkerInfo(
        id=worker_id,
        host="here",
        pid=1,
        started_ms=0,
        lease_ms=lease_ms,
        queues=["default"],
        types=[],
        state="ready",
        children=[],
        wanted_children=0,
        guard="ok",
    )


def patient(client: Redis) -> Redis:
    """As it is, but for its timeouts, which a busy machine could miss; before its first connection is made."""
    pool: Any = client.connection_pool
    pool.timeout = 60
    pool.connection_kwargs.update(socket_timeout=60, socket_connect_timeout=60)
    return client


class Hand:
    """A supervisor's calls, without a supervisor."""

    def __init__(self, store: Store, worker_id: str) -> None:
        self.store = store
        self.id = worker_id
        self.last_beat = BeatValue(0, LEASE_MS)

    async def beat(self, *held: Claimed, served: list[Served] = SERVED, shares: str = "") -> BeatAnswer:
        names = [Held(task.id, task.epoch) for task in held]
        answer = await self.store.beat(0, worker_info(self.id), held=names, served=served, shares=shares)
        self.last_beat = answer.beats[self.id]
        return answer

    async def claim(self, sync: int = 1, *, free_async: int = 0, served: list[Served] = SERVED, **more: Any) -> Taken:
        return await self.store.claim(
            0, self.id, served=served, free_sync=sync, free_async=free_async, lease_ms=LEASE_MS, **more
        )

    async def claim_one(self, **more: Any) -> Claimed:
        [task] = await self.claim(**more)
        return task

    async def finish(self, task: Claimed, outcome: str = "succeeded", **more: object) -> str:
        fields = {"result": b'"done"' if outcome == "succeeded" else b"", "max_attempts": 3, **more}
        [reply] = await self.store.finish(
            0,
            self.id,
            [Finish(id=task.id, epoch=task.epoch, outcome=outcome, **fields)],  # type: ignore[arg-type]
        )
        return reply

    async def hand_back(self, task: Claimed, **more: object) -> str:
        [reply] = await self.store.hand_back(
            0,
            self.id,
            [HandBack(id=task.id, epoch=task.epoch, **more)],  # type: ignore[arg-type]
        )
        return reply

    async def report(self, task: Claimed, number: int = 1, **more: object) -> str:
        [reply] = await self.store.report(
            0,
            self.id,
            [Report(id=task.id, epoch=task.epoch, number=number, **more)],  # type: ignore[arg-type]
        )
        return reply

    async def reap(self, dead: "Hand") -> int | None:
        """Reap `dead` as if it had not beaten since its last beat; how many it still holds."""
        reaped = await self.store.reap(0, dead.id, watched=dead.last_beat)
        return None if reaped is None else reaped.remaining


@pytest.fixture
async def w1(store: Store) -> Hand:
    """A supervisor that has beaten once."""
    hand = Hand(store, "w1")
    await hand.beat()
    return hand


@pytest.fixture
async def w2(store: Store) -> Hand:
    hand = Hand(store, "w2")
    await hand.beat()
    return hand


async def submit(store: Store, *items: Submission, limits: Limits = LIMITS) -> list[str]:
    """Submit and require that all are accepted; their ids."""
    outcomes = await store.submit(items or (submission(),), limits)
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    assert len(accepted) == len(outcomes), outcomes
    return [each.task_id for each in accepted]


async def read(store: Store, task_id: str) -> TaskRecord:
    [record] = await store.read([task_id])
    assert record is not None
    return record


@pytest.fixture(autouse=True)
async def _all_agrees(redis_client: Redis, store: Store) -> AsyncIterator[None]:
    """After every test: what is stored agrees with itself, and what is over has a time to live."""
    yield
    await invariants.check(redis_client, store)

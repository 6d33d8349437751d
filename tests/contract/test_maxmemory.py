"""At maxmemory new tasks are refused, and everything that ends, moves or shows the accepted ones works."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract.errors import StoreUnavailable
from taskgate.contract.models import TypeInfo
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import LIMITS, Hand, read, submission, submit
from tests.contract.invariants import everything

ECHO = TypeInfo(
    type="echo",
    schema_hash="v1",
    kind="sync",
    queue="default",
    schema=msgspec.Raw(b"{}"),
    timeout_s=1,
    max_attempts=3,
)


@asynccontextmanager
async def _full(redis: Redis) -> AsyncIterator[None]:
    await redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await redis.config_set("maxmemory", 0)


async def test_a_whole_life_goes_on(store: Store, w1: Hand, w2: Hand, clock: Clock, redis_client: Redis) -> None:
    ids = await submit(store, *(submission() for _ in range(5)), submission(delay_ms=5, deadline_ms=9))
    async with _full(redis_client):
        first, second, third, lost = await w1.claim(sync=4)
        assert (await w1.beat(first, second, third, lost)).lost == []
        assert await w1.report(first, progress=b"{}", events=[("custom", b"{}")]) == "ok"
        child = submission("other")
        assert await w1.finish(first, submitted=[child]) == "succeeded"
        assert await w1.finish(second, "retry", retry_delay_ms=3) == "retrying"
        assert await w1.hand_back(third) == "queued"
        assert await w2.reap(w1) == 0
        assert await store.cancel(ids[4]) is Status.CANCELED
        clock.advance(5)
        await store.promote(0)
        waiting = {task.id for task in await w2.claim(sync=9)}
        assert waiting == {second.id, third.id, lost.id, child.id, ids[5]}
        assert (await read(store, first.id)).status is Status.SUCCEEDED
        assert await store.events(first.id)
        assert not await store.goodbye(0, w2.id)
        await store.announce([ECHO])
        await store.nudge("w2")
        assert await store.wait_for_work([], worker_id="w2", timeout_s=1) is None
        clock.advance(10**9)
        assert await store.trim(0) == 2


async def test_what_is_new_is_refused_and_leaves_no_trace(store: Store, w1: Hand, redis_client: Redis) -> None:
    [task_id] = await submit(store)
    await w1.finish(await w1.claim_one(), "failed")
    before = await everything(redis_client)
    async with _full(redis_client):
        with pytest.raises(StoreUnavailable):
            await store.submit([submission()], LIMITS)
        with pytest.raises(StoreUnavailable):
            await store.redrive(task_id, request_id="r", limits=LIMITS)
    assert await everything(redis_client) == before

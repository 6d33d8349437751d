"""delete: a finished task -> nothing of it is left."""

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import NotFinished, TaskNotFound
from taskgate.contract.models import Accepted
from taskgate.contract.store import Store
from tests.contract.conftest import LIMITS, Hand, submission, submit
from tests.contract.invariants import everything


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "canceled"])
async def test_nothing_is_left_of_it(store: Store, w1: Hand, redis_client: Redis, outcome: str) -> None:
    [task_id] = await submit(store, submission(payload=b'"' + b"x" * 2000 + b'"', key="k"))
    task = await w1.claim_one()
    await w1.beat(task)
    await w1.report(task, events=[("custom", b"{}")])
    await redis_client.xadd(f"{keys.task(0, task_id)}:logs", {"text": "said"})
    if outcome == "canceled":
        await store.cancel(task_id)
    await w1.finish(task, outcome)

    await store.delete(task_id)
    left = await everything(redis_client)
    assert not [key for key, value in left.items() if task_id in key or task_id.encode() in repr(value).encode()]
    assert not [key for key in left if "idem" in key or (key.endswith("usage") and b"kept:bytes" in left[key])]
    with pytest.raises(TaskNotFound):
        await store.delete(task_id)


@pytest.mark.parametrize("state", ["scheduled", "queued", "running", "retrying", "canceling"])
async def test_what_has_not_ended_stays(store: Store, w1: Hand, redis_client: Redis, state: str) -> None:
    [task_id] = await submit(store, submission(delay_ms=1000 if state == "scheduled" else 0))
    if state in ("running", "retrying", "canceling"):
        task = await w1.claim_one()
        if state == "canceling":
            await store.cancel(task_id)
        if state == "retrying":
            await w1.finish(task, "retry", retry_delay_ms=1000)
    before = await everything(redis_client)
    with pytest.raises(NotFinished) as refused:
        await store.delete(task_id)
    assert refused.value.status == state
    assert await everything(redis_client) == before


async def test_anothers_is_not_found(store: Store, redis_client: Redis) -> None:
    [task_id] = await submit(store, submission(tenant="a"))
    await store.cancel(task_id)
    before = await everything(redis_client)
    with pytest.raises(TaskNotFound):
        await store.delete(task_id, tenant="b")
    assert await everything(redis_client) == before
    await store.delete(task_id, tenant="a")


async def test_a_key_that_another_task_has_by_now_stays_its_own(store: Store, redis_client: Redis) -> None:
    """The record of a first one outlived its key's 24 hours."""
    first = submission(key="k")
    await submit(store, first)
    await store.cancel(first.id)
    [idem] = await redis_client.keys("*idem:*")
    await redis_client.delete(idem)
    second = submission(key="k")
    await submit(store, second)
    await store.delete(first.id)
    assert await store.submit([submission(key="k")], LIMITS) == [Accepted(second.id, replayed=True)]


async def test_its_watchers_are_woken(store: Store, redis_client: Redis) -> None:
    [task_id] = await submit(store)
    await store.cancel(task_id)
    async with redis_client.pubsub() as pubsub:
        await pubsub.subscribe(keys.changes(0, task_id))
        subscribed = await pubsub.get_message(timeout=30)
        assert subscribed is not None
        await store.delete(task_id)
        message = await pubsub.get_message(timeout=30)
        assert message is not None
        assert message["type"] == "message"

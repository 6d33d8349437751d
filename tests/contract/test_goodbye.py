"""goodbye: a supervisor that holds nothing leaves; what is held keeps it for the reaper."""

from redis.asyncio import Redis

from taskgate.contract.store import Store
from tests.contract.conftest import Hand, submit
from tests.contract.invariants import everything


async def test_one_that_holds_nothing_leaves_no_trace(store: Store, redis_client: Redis) -> None:
    hand = Hand(store, "w1")
    before = await everything(redis_client)
    await hand.beat()
    assert await store.goodbye(0, "w1")
    assert await everything(redis_client) == before
    assert await store.workers() == []


async def test_one_that_still_holds_something_stays_for_the_reaper(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis
) -> None:
    await submit(store)
    await w1.claim_one()
    before = await everything(redis_client)
    assert not await store.goodbye(0, "w1")
    assert await everything(redis_client) == before
    assert await w2.reap(w1) == 0


async def test_a_repeat_after_a_lost_reply_is_answered_alike(store: Store, w1: Hand, w2: Hand) -> None:
    assert await store.goodbye(0, "w1")
    assert await store.goodbye(0, "w1")
    assert [info.id for info in await store.workers()] == ["w2"]

"""trim: finished tasks go when their retention is over, and leave no key."""

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import Finish
from taskgate.contract.script import BATCH
from taskgate.contract.store import Store
from tests.conftest import Clock, dead_letters
from tests.contract.conftest import Hand, submission, submit
from tests.contract.invariants import everything

RETENTION_MS = 1000


@pytest.fixture
def store(redis_client: Redis, clock: Clock) -> Store:
    """The store, whose finished tasks are kept for a second and dead letters for five."""
    return Store(redis_client, clock=clock, retention_ms=RETENTION_MS, dead_retention_ms=5 * RETENTION_MS)


async def test_a_task_is_kept_until_its_retention_is_over(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store)
    await w1.finish(await w1.claim_one(), retention_ms=RETENTION_MS)
    clock.advance(RETENTION_MS - 1)
    assert await store.trim(0) == 0
    assert await store.read([task_id]) != [None]
    clock.advance(1)
    assert await store.trim(0) == 1
    assert await store.read([task_id]) == [None]


async def test_a_dead_letter_is_kept_for_longer(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, submission(max_attempts=1), submission(max_attempts=1))
    finished, lost = await w1.claim(sync=2)
    await w1.finish(finished, "failed", retention_ms=RETENTION_MS, dead_retention_ms=5 * RETENTION_MS)
    await Hand(store, "w2").reap(w1)
    clock.advance(5 * RETENTION_MS - 1)
    assert await store.trim(0) == 0
    assert set(await dead_letters(store)) == {finished.id, lost.id}
    clock.advance(1)
    assert await store.trim(0) == 2
    assert await dead_letters(store) == []


async def test_every_way_to_end_leaves_no_key(
    store: Store, w1: Hand, w2: Hand, clock: Clock, redis_client: Redis
) -> None:
    ends = [submission(tenant=f"t{n}", max_attempts=1, key=f"k{n}") for n in range(7)]
    await submit(store, *ends)
    tasks = await w1.claim(sync=7)
    await submit(store, submission(deadline_ms=1), submission(delay_ms=1000, deadline_ms=1))
    waiting = await submit(store, submission("get"), submission(delay_ms=9000))
    for task in tasks:
        await w1.report(task, progress=b"{}", checkpoint=b"[]", events=[("custom", b"{}")])
    await w1.finish(tasks[0], retention_ms=RETENTION_MS)
    await w1.finish(tasks[1], "failed", error=b"{}", dead_retention_ms=RETENTION_MS)
    await store.cancel(tasks[2].id)
    await w1.finish(tasks[2], "canceled", retention_ms=RETENTION_MS)
    await store.cancel(tasks[3].id)
    await w1.hand_back(tasks[3], retention_ms=RETENTION_MS)
    await store.cancel(tasks[4].id)
    await w2.reap(w1)  # 4: canceled, 5 and 6: failed
    await store.cancel(waiting[0])
    await store.cancel(waiting[1])
    clock.advance(1)
    await w2.claim(sync=9)
    await store.promote(0)

    clock.advance(5 * RETENTION_MS)
    assert await store.trim(0) == 11
    assert await w2.store.goodbye(0, w2.id)
    left = await everything(redis_client)
    for key in left:
        assert key.startswith("tg:{0}:idem:")
        assert await redis_client.pttl(key) > 0


async def test_the_measured_speed_of_a_queue_in_use_outlives_its_tasks(
    store: Store, w1: Hand, clock: Clock, redis_client: Redis
) -> None:
    await submit(store, submission(), submission())
    await w1.finish(await w1.claim_one(), retention_ms=RETENTION_MS)
    clock.advance(RETENTION_MS)
    assert await store.trim(0) == 1
    assert await redis_client.hexists(keys.usage(0), "drain_at:default")


async def test_the_idempotency_key_of_a_purged_task_is_free(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, submission(key="k"))
    await w1.finish(await w1.claim_one(), retention_ms=RETENTION_MS)
    clock.advance(RETENTION_MS)
    await store.trim(0)
    again = submission(key="k")
    assert await submit(store, again) == [again.id]


async def test_what_has_not_ended_is_never_trimmed(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, submission(), submission(), submission("get"), submission(delay_ms=10**13))
    first, second = await w1.claim(sync=2)
    await w1.finish(second, "retry", retry_delay_ms=10**13)
    clock.advance(10**12)
    assert await store.trim(0) == 0
    assert (await w1.beat(first)).lost == []


async def test_a_call_deletes_a_bounded_number(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, *(submission() for _ in range(BATCH + 1)))
    tasks = await w1.claim(sync=BATCH + 1)
    await store.finish(
        0, "w1", [Finish(id=each.id, epoch=1, outcome="succeeded", result=b"1", retention_ms=1) for each in tasks]
    )
    clock.advance(1)
    assert [await store.trim(0) for _ in range(3)] == [BATCH, 1, 0]


async def test_without_a_trimmer_a_time_to_live_does_it(store: Store, w1: Hand, redis_client: Redis) -> None:
    """The belt: later than the purge, so that the trimmer is first where there is one."""
    await submit(store)
    task = await w1.claim_one()
    await w1.finish(task, retention_ms=RETENTION_MS)
    for key in (keys.task(0, task.id), keys.events(0, task.id)):
        assert RETENTION_MS < await redis_client.pttl(key) <= RETENTION_MS + 86_400_000

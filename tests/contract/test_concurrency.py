"""Concurrency keys: so many tasks of a key at a time, the others queued behind them, whatever ends one."""

from typing import Any

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import Claimed, Served, Submission
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import Hand, read, submission, submit


def keyed(key: str = "k", **more: Any) -> Submission:
    return submission(concurrency_key=key, **more)


async def end(task: Claimed, how: str, store: Store, w1: Hand, w2: Hand) -> None:
    """Every way in which a task stops to run or wait."""
    match how:
        case "succeeds" | "fails":
            await w1.finish(task, {"succeeds": "succeeded", "fails": "failed"}[how])
        case "will be retried":
            await w1.finish(task, "retry", retry_delay_ms=1000)
        case "is handed back for later":
            await w1.hand_back(task, delay_ms=1000)
        case "is canceled":
            await store.cancel(task.id)
            await w1.hand_back(task)
        case "is canceled and lost":
            await store.cancel(task.id)
            await w2.reap(w1)
        case "is lost for the last time":
            await w2.reap(w1)


ENDS = [
    "succeeds", "fails", "will be retried", "is handed back for later", "is canceled", "is canceled and lost",
    "is lost for the last time",
]  # fmt: skip


async def test_tasks_of_a_key_run_one_by_one_and_in_order(store: Store, w1: Hand) -> None:
    ids = await submit(store, *(keyed() for _ in range(4)))
    assert [record.status for record in await store.read(ids) if record] == [Status.QUEUED] * 4
    ran = []
    for _ in ids:
        [task] = await w1.claim(sync=9)
        ran.append(task.id)
        await w1.finish(task)
    assert ran == ids


async def test_as_many_run_at_a_time_as_their_type_allows(store: Store, w1: Hand, w2: Hand) -> None:
    await submit(store, *(keyed(concurrency=3) for _ in range(9)))
    held = await w1.claim(sync=2)
    assert len(await w2.claim(sync=9)) == 1
    for task in held:
        await w1.finish(task)
    assert len(await w2.claim(sync=9)) == 2


async def test_keys_tenants_and_types_do_not_wait_for_each_other(store: Store, w1: Hand) -> None:
    same: list[dict[str, str]] = [{}, {"key": "other"}, {"tenant": "b"}, {"task_type": "other"}]
    await submit(store, *(keyed(**each) for each in same for _ in range(2)))
    assert len(await w1.claim(sync=9)) == 4


async def test_a_key_holds_over_queues(store: Store, w1: Hand) -> None:
    served = [Served("default", "echo", "sync"), Served("second", "echo", "sync")]
    first, second = await submit(store, keyed(), keyed(queue="second"))
    [task] = await w1.claim(sync=9, served=served)
    assert task.id == first
    await w1.finish(task)
    [task] = await w1.claim(sync=9, served=served)
    assert task.id == second


@pytest.mark.parametrize("how", ENDS)
async def test_the_next_goes_on_when_one(store: Store, w1: Hand, w2: Hand, redis_client: Redis, how: str) -> None:
    attempts = 1 if how == "is lost for the last time" else 3
    first, second, _ = await submit(store, *(keyed(max_attempts=attempts) for _ in range(3)))
    task = await w1.claim_one()
    assert task.id == first
    assert await w1.claim(sync=9) == []
    await end(task, how, store, w1, w2)

    assert await redis_client.llen(keys.wake(0, "default", "echo")) == 1
    [following] = await w2.claim(sync=9)
    assert following.id == second


async def test_a_lost_task_goes_before_those_that_wait_for_its_place(store: Store, w1: Hand, w2: Hand) -> None:
    first, _ = await submit(store, keyed(), keyed())
    await w1.claim_one()
    await w2.reap(w1)
    [task] = await w2.claim(sync=9)
    assert task.id == first


async def test_a_task_that_is_handed_back_keeps_its_place(store: Store, w1: Hand) -> None:
    first, _ = await submit(store, keyed(), keyed())
    await w1.hand_back(await w1.claim_one())
    [task] = await w1.claim(sync=9)
    assert task.id == first


async def test_a_retry_waits_for_a_place_again_and_comes_first(store: Store, w1: Hand, clock: Clock) -> None:
    first, second, third = await submit(store, *(keyed() for _ in range(3)))
    await w1.finish(await w1.claim_one(), "retry", retry_delay_ms=1000)
    task = await w1.claim_one()
    assert task.id == second
    clock.advance(1000)
    await store.promote(0)
    assert (await read(store, first)).status is Status.QUEUED
    assert await w1.claim(sync=9) == []
    await w1.finish(task)
    [task] = await w1.claim(sync=9)
    assert task.id == first
    await w1.finish(task)
    assert (await w1.claim_one()).id == third


async def test_a_canceled_task_gives_its_place_also_when_it_only_waits_for_a_worker(store: Store, w1: Hand) -> None:
    first, second, third = await submit(store, *(keyed() for _ in range(3)))
    await store.cancel(second)
    await store.cancel(first)
    [task] = await w1.claim(sync=9)
    assert task.id == third


@pytest.mark.parametrize("by", ["promote", "claim"])
async def test_an_expired_task_gives_its_place(store: Store, w1: Hand, clock: Clock, by: str) -> None:
    """So does one that expires while it waits for a place."""
    await submit(store, keyed(deadline_ms=1000))
    await submit(store, keyed(deadline_ms=1000), keyed())
    clock.advance(1000)
    if by == "promote":
        await store.promote(0)
        assert len(await w1.claim(sync=9)) == 1
    else:
        assert len(await w1.claim(sync=9) + await w1.claim(sync=9)) == 1


async def test_a_scheduled_task_takes_its_place_when_it_is_due(store: Store, w1: Hand, clock: Clock) -> None:
    later, now = await submit(store, keyed(delay_ms=1000), keyed())
    task = await w1.claim_one()
    assert task.id == now
    clock.advance(1000)
    await store.promote(0)
    assert await w1.claim(sync=9) == []
    await w1.finish(task)
    assert (await w1.claim_one()).id == later


async def test_tasks_that_nobody_serves_fail_also_behind_a_key(store: Store, w1: Hand) -> None:
    ids = await submit(store, *(keyed(task_type="strange") for _ in range(5)))
    assert await store.fail_unserved(0, "w1", queue="default", task_type="strange", after_s=1) == 5
    assert [record.status for record in await store.read(ids) if record] == [Status.FAILED] * 5


async def test_higher_priority_has_the_next_place(store: Store, w1: Hand) -> None:
    await submit(store, keyed(priority=0))
    running = await w1.claim_one()
    await submit(store, keyed(priority=0))
    [urgent] = await submit(store, keyed(priority=9))
    assert await w1.claim(sync=9) == []
    await w1.finish(running)
    assert (await w1.claim_one()).id == urgent


async def test_more_places_are_used_at_once_when_the_type_allows_more(store: Store, w1: Hand) -> None:
    await submit(store, *(keyed() for _ in range(2)))
    task = await w1.claim_one()
    await submit(store, *(keyed(concurrency=3) for _ in range(3)))
    assert len(await w1.claim(sync=9)) == 2
    await w1.finish(task)


async def test_suspects_share_the_places_of_their_type(store: Store, w1: Hand) -> None:
    await submit(store, *(keyed(task_type="get") for _ in range(2)))
    [task] = await w1.claim(sync=0, free_async=9)
    await w1.hand_back(task, reason="suspect")
    [again] = await w1.claim(sync=0, free_async=9, free_alone=9)
    assert again.id == task.id
    await w1.finish(again)
    assert len(await w1.claim(sync=0, free_async=9)) == 1


async def test_a_task_without_a_key_has_no_field_for_it(store: Store, w1: Hand, redis_client: Redis) -> None:
    [task_id] = await submit(store)
    await w1.claim_one()
    assert not await redis_client.hexists(keys.task(0, task_id), "ckey")


async def test_a_higher_priority_takes_the_place_of_one_that_is_ready(store: Store, w1: Hand) -> None:
    early, late = await submit(store, keyed(priority=0), keyed(priority=0))
    [urgent] = await submit(store, keyed(priority=9))
    order = []
    for _ in range(3):
        [task] = await w1.claim(sync=9)
        order.append(task.id)
        await w1.finish(task)
    assert order == [urgent, early, late]


async def test_it_takes_that_of_the_last_of_them(store: Store, w1: Hand) -> None:
    first, second, third = await submit(store, *(keyed(priority=priority, concurrency=3) for priority in (5, 0, 1)))
    [running] = await w1.claim(sync=1)
    assert running.id == first
    [urgent] = await submit(store, keyed(priority=9, concurrency=3))
    assert [task.id for task in await w1.claim(sync=9)] == [urgent, third]
    await w1.finish(running)
    assert [task.id for task in await w1.claim(sync=9)] == [second]


async def test_a_higher_priority_goes_before_what_waits_in_a_queue_that_nobody_serves(
    store: Store, w1: Hand, redis_client: Redis
) -> None:
    """Nothing stays of the queue's orders while its only task waits for a place."""
    [unserved] = await submit(store, keyed(queue="nobodys"))
    [urgent] = await submit(store, keyed(priority=9))
    assert not await redis_client.exists(keys.wake(0, "nobodys", "echo"))
    task = await w1.claim_one()
    assert task.id == urgent
    await w1.finish(task)
    assert await redis_client.exists(keys.wake(0, "nobodys", "echo"))
    [task] = await w1.claim(served=[Served("nobodys", "echo", "sync")])
    assert task.id == unserved


async def test_nobody_passes_one_that_waits_for_a_place_longer(store: Store, w1: Hand) -> None:
    """Also where the place is kept by one of a lower priority, which was handed back."""
    await submit(store, keyed(priority=0))
    running = await w1.claim_one()
    [waits] = await submit(store, keyed(priority=9))
    await w1.hand_back(running)
    [comes] = await submit(store, keyed(priority=9))
    order = []
    for _ in range(3):
        task = await w1.claim_one()
        order.append(task.id)
        await w1.finish(task)
    assert order == [running.id, waits, comes]


async def test_where_more_places_are_taken_than_are_looked_at_it_waits(store: Store, w1: Hand) -> None:
    await submit(store, *(keyed(priority=0, concurrency=65) for _ in range(65)))
    [urgent] = await submit(store, keyed(priority=9, concurrency=65))
    assert urgent not in [task.id for task in await w1.claim(sync=99)]

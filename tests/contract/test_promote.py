"""promote: what is due; scheduled | retrying -> queued, or -> expired at the deadline of what never started."""

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.script import BATCH
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import Hand, read, submission, submit
from tests.contract.invariants import everything


async def test_a_scheduled_task_is_queued_at_its_start(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store, submission(delay_ms=1000))
    record = await read(store, task_id)
    assert (record.status, record.due_ms, record.position) == (Status.SCHEDULED, clock.now + 1000, None)

    clock.advance(999)
    assert await store.promote(0) == (clock.now, clock.now + 1)
    assert (await read(store, task_id)).status is Status.SCHEDULED
    clock.advance(1)
    assert await store.promote(0) == (clock.now, 0)
    record = await read(store, task_id)
    assert (record.status, record.version, record.due_ms, record.position) == (Status.QUEUED, 2, 0, 0)
    await w1.claim_one()


@pytest.mark.parametrize(("before_ms", "status"), [(1, Status.SCHEDULED), (0, Status.QUEUED), (-1, Status.QUEUED)])
async def test_a_start_time_is_met_on_redis_clock(store: Store, clock: Clock, before_ms: int, status: Status) -> None:
    [task_id] = await submit(store, submission(run_at_ms=clock.now + before_ms))
    assert (await read(store, task_id)).status is status


async def test_promoting_wakes_an_idle_supervisor(store: Store, clock: Clock, redis_client: Redis) -> None:
    await submit(store, submission(delay_ms=1000))
    assert not await redis_client.exists(keys.wake(0, "default", "echo"))
    clock.advance(1000)
    await store.promote(0)
    assert await redis_client.llen(keys.wake(0, "default", "echo")) == 1


async def test_a_retry_that_is_due_is_told_in_the_stream(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store)
    await w1.finish(await w1.claim_one(), "retry", retry_delay_ms=1000)
    clock.advance(1000)
    await store.promote(0)
    event = (await store.events(task_id))[-1]
    assert (event.seq, event.data) == (4, b'{"status":"queued","attempt":1}')


async def test_the_stream_begins_at_the_first_claim(store: Store, clock: Clock) -> None:
    [task_id] = await submit(store, submission(delay_ms=1000))
    clock.advance(1000)
    await store.promote(0)
    assert await store.events(task_id) == []


@pytest.mark.parametrize("delay_ms", [0, 500, 2000])
async def test_what_has_not_started_expires_at_its_deadline(
    store: Store, w1: Hand, clock: Clock, delay_ms: int
) -> None:
    [task_id] = await submit(store, submission(delay_ms=delay_ms, deadline_ms=1000))
    clock.advance(500)
    await store.promote(0)
    clock.advance(499)
    assert (await store.promote(0))[1] == clock.now + 1
    assert (await read(store, task_id)).status in (Status.SCHEDULED, Status.QUEUED)
    clock.advance(1)
    assert await store.promote(0) == (clock.now, 0)

    record = await read(store, task_id)
    assert (record.status, record.attempt, record.finished_ms) == (Status.EXPIRED, 0, clock.now)
    assert (await store.events(task_id))[-1].data == b'{"status":"expired","attempt":0}'
    assert await w1.claim(sync=9) == []


async def test_what_runs_does_not_expire(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store, submission(deadline_ms=1000))
    task = await w1.claim_one()
    clock.advance(1000)
    assert await store.promote(0) == (clock.now, 0)
    assert (await w1.beat(task)).lost == []
    assert (await read(store, task_id)).status is Status.RUNNING


async def test_a_retrying_task_has_no_start_deadline_any_more(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store, submission(deadline_ms=1000))
    await w1.finish(await w1.claim_one(), "retry", retry_delay_ms=2000)
    clock.advance(1000)
    assert await store.promote(0) == (clock.now, clock.now + 1000)
    clock.advance(1000)
    assert await store.promote(0) == (clock.now, 0)
    assert (await w1.claim_one()).id == task_id


async def test_a_call_does_a_bounded_number(store: Store, clock: Clock) -> None:
    ids = await submit(store, *(submission(delay_ms=1000) for _ in range(BATCH + 1)))
    due = clock.now + 1000
    clock.advance(5000)
    assert await store.promote(0) == (clock.now, due)
    assert await store.promote(0) == (clock.now, 0)
    assert {record.status for record in await store.read(ids) if record} == {Status.QUEUED}


async def test_a_repeat_has_no_second_effect(store: Store, clock: Clock, redis_client: Redis) -> None:
    await submit(store, submission(delay_ms=1000), submission(deadline_ms=1000))
    clock.advance(1000)
    await store.promote(0)
    before = await everything(redis_client)
    await store.promote(0)
    assert await everything(redis_client) == before


async def test_only_a_new_earliest_time_is_told_to_supervisors(store: Store, clock: Clock, redis_client: Redis) -> None:
    told = []
    async with redis_client.pubsub() as pubsub:
        await pubsub.subscribe(keys.notices(0))
        await pubsub.get_message(timeout=30)
        for delay_ms in (3000, 4000, 1000, 2000):
            await submit(store, submission(delay_ms=delay_ms))
        await submit(store, submission(deadline_ms=500))
        await redis_client.publish(keys.notices(0), "that is all")
        while (message := await pubsub.get_message(timeout=30)) and message["data"] != b"that is all":
            told.append(message["data"])
    assert told == [b"due %d" % (clock.now + after) for after in (3000, 1000, 500)]

"""reap: end what a dead supervisor held; running -> queued | failed, canceling -> canceled."""

import json

import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import NoSuchWorker
from taskgate.contract.models import BeatValue, Held
from taskgate.contract.script import BATCH
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock, dead_letters
from tests.contract.conftest import LEASE_MS, Hand, read, submission, submit
from tests.contract.invariants import everything


async def test_a_lost_task_waits_again_in_its_old_place_and_the_attempt_counts(
    store: Store, w1: Hand, w2: Hand, clock: Clock
) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    clock.advance(1)
    await submit(store)

    assert await w2.reap(w1) == 0
    record = await read(store, task_id)
    assert (record.status, record.version, record.attempt, record.worker) == (Status.QUEUED, 3, 1, "")
    assert (record.position, record.alive_ms) == (0, None)
    event = json.loads((await store.events(task_id))[-1].data)
    assert (event["status"], event["error"]["kind"], event["error"]["worker"]) == ("queued", "lost", "w1")
    again = await w2.claim_one()
    assert (again.id, again.attempt, again.epoch) == (task.id, 2, 2)


@pytest.mark.parametrize(("max_attempts", "status"), [(1, Status.FAILED), (2, Status.QUEUED), (3, Status.QUEUED)])
async def test_a_lost_task_fails_at_its_maximum_of_attempts(
    store: Store, w1: Hand, w2: Hand, max_attempts: int, status: Status
) -> None:
    [task_id] = await submit(store, submission(max_attempts=max_attempts))
    await w1.claim_one()
    await w2.reap(w1)

    record = await read(store, task_id)
    assert record.status is status
    assert json.loads(record.error)["kind"] == "lost"
    assert (await dead_letters(store) == [task_id]) == (status is Status.FAILED)


async def test_each_that_was_ended_is_told_with_what_became_of_it(store: Store, w1: Hand, w2: Hand) -> None:
    again, last, canceling = submission(tenant="acme"), submission(max_attempts=1), submission()
    await submit(store, again, last, canceling)
    await w1.claim(sync=3)
    await store.cancel(canceling.id)

    reaped = await store.reap(0, "w1", watched=w1.last_beat)

    assert reaped is not None
    told = {lost.spec.id: (lost.status, lost.attempt, lost.spec.tenant) for lost in reaped.ended}
    assert told == {
        again.id: ("queued", 1, "acme"),
        last.id: ("failed", 1, "default"),
        canceling.id: ("canceled", 1, "default"),
    }


async def test_one_whose_record_cannot_be_read_is_told_by_its_id(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis
) -> None:
    [task_id] = await submit(store)
    await w1.claim_one()
    await redis_client.hset(keys.task(0, task_id), "spec", "no JSON")
    reaped = await store.reap(0, "w1", watched=w1.last_beat)
    assert reaped is not None
    assert [(lost.spec.id, lost.status) for lost in reaped.ended] == [(task_id, "queued")]


async def test_the_default_maximum_is_that_of_the_model(store: Store, w1: Hand, w2: Hand) -> None:
    [task_id] = await submit(store)
    for wanted in (Status.QUEUED, Status.QUEUED, Status.FAILED):
        await w1.claim_one()
        await w2.reap(w1)
        assert (await read(store, task_id)).status is wanted
        await w1.beat()


async def test_what_a_client_writes_into_metadata_is_not_taken_for_the_maximum(
    store: Store, w1: Hand, w2: Hand
) -> None:
    many, one = submission(metadata=msgspec.Raw(b'{"max_attempts":1}')), submission("other", max_attempts=1)
    await submit(store, many, one)
    await w1.claim(sync=2)
    await w2.reap(w1)
    assert (await read(store, many.id)).status is Status.QUEUED
    assert (await read(store, one.id)).status is Status.FAILED


async def test_a_canceling_task_ends_canceled(store: Store, w1: Hand, w2: Hand) -> None:
    [task_id] = await submit(store)
    await w1.claim_one()
    await store.cancel(task_id)
    await w2.reap(w1)
    assert (await read(store, task_id)).status is Status.CANCELED


async def test_a_counter_that_moved_protects_the_supervisor(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis, clock: Clock
) -> None:
    await submit(store)
    task = await w1.claim_one()
    watched = w1.last_beat
    clock.advance(1000 * LEASE_MS)
    await w1.beat(task)
    before = await everything(redis_client)

    assert await store.reap(0, "w1", watched=watched) is None
    assert await store.reap(0, "w1", watched=BeatValue(w1.last_beat.counter, LEASE_MS + 1)) is None
    assert await everything(redis_client) == before


async def test_redis_clock_ends_no_attempt(store: Store, w1: Hand, w2: Hand, clock: Clock) -> None:
    await submit(store)
    task = await w1.claim_one()
    clock.advance(1000 * LEASE_MS)
    await w2.beat()
    await store.promote(0)
    await store.trim(0)
    assert await w2.claim() == []
    assert (await w1.beat(task)).lost == []


async def test_only_what_the_dead_one_held_is_ended(store: Store, w1: Hand, w2: Hand) -> None:
    await submit(store, submission(), submission())
    await w1.claim_one()
    mine = await w2.claim_one()
    await w2.reap(w1)
    assert (await w2.beat(mine)).lost == []
    assert (await read(store, mine.id)).alive_ms is not None


async def test_a_call_ends_a_bounded_number_and_the_last_one_removes_the_supervisor(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis
) -> None:
    ids = await submit(store, *(submission() for _ in range(BATCH + 1)))
    await w1.claim(sync=BATCH + 1)

    assert await w2.reap(w1) == 1
    assert await redis_client.hexists(keys.beats(0), "w1")
    assert await w2.reap(w1) == 0
    assert not await redis_client.hexists(keys.beats(0), "w1")
    assert not await redis_client.exists(keys.worker(0, "w1"))
    assert {record.status for record in await store.read(ids) if record} == {Status.QUEUED}


async def test_a_repeat_after_a_lost_reply_has_no_second_effect(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis
) -> None:
    await submit(store, submission(), submission(max_attempts=1))
    await w1.claim(sync=2)
    await w2.reap(w1)
    before = await everything(redis_client)
    assert await w2.reap(w1) is None
    assert await everything(redis_client) == before


async def test_one_that_held_nothing_is_removed(store: Store, w1: Hand, w2: Hand) -> None:
    assert await w2.reap(w1) == 0
    assert [info.id for info in await store.workers()] == ["w2"]


async def test_a_beat_in_the_middle_of_a_long_reap_stops_it(store: Store, w1: Hand, w2: Hand) -> None:
    await submit(store, *(submission() for _ in range(BATCH + 2)))
    await w1.claim(sync=BATCH + 2)
    watched = w1.last_beat
    assert await w2.reap(w1) == 2
    answer = await w1.beat()
    assert await store.reap(0, "w1", watched=watched) is None
    assert len(answer.unknown) == 2


async def test_a_zombie_may_neither_claim_nor_write(store: Store, w1: Hand, w2: Hand, redis_client: Redis) -> None:
    await submit(store)
    task = await w1.claim_one()
    await w2.reap(w1)
    before = await everything(redis_client)

    assert await w1.finish(task) == "stale"
    assert await w1.hand_back(task) == "stale"
    assert await w1.report(task, progress=b"{}") == "stale"
    with pytest.raises(NoSuchWorker):
        await w1.claim()
    assert await everything(redis_client) == before
    assert (await w1.beat(task)).lost == [Held(task.id, 1)]


@pytest.mark.parametrize("cancel", [False, True])
async def test_a_zombie_does_not_touch_what_the_reaper_ended(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis, cancel: bool
) -> None:
    [task_id] = await submit(store, submission(max_attempts=1))
    task = await w1.claim_one()
    if cancel:
        await store.cancel(task_id)
    await w2.reap(w1)
    before = await everything(redis_client)
    assert await w1.finish(task) == "stale"
    assert await w1.hand_back(task) == "stale"
    assert await w1.report(task, progress=b"{}") == "stale"
    assert await everything(redis_client) == before
    assert (await w1.beat(task)).lost == [Held(task_id, 1)]


async def test_reaping_wakes_an_idle_supervisor(store: Store, w1: Hand, w2: Hand, redis_client: Redis) -> None:
    await submit(store)
    await w1.claim_one()
    await redis_client.delete(keys.wake(0, "default", "echo"))
    await w2.reap(w1)
    assert await redis_client.llen(keys.wake(0, "default", "echo")) == 1

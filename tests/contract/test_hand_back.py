"""hand_back: running -> queued | retrying with the old score; canceling -> canceled."""

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import NEIGHBOUR_LIMIT, Claimed, HandBack, Limits, Served
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import SERVED, Hand, read, submission, submit
from tests.contract.invariants import everything


async def _running(store: Store, hand: Hand, **more: object) -> Claimed:
    await submit(store, submission(**more))  # type: ignore[arg-type]
    return await hand.claim_one()


async def test_what_is_handed_back_waits_in_its_old_place_uncounted(store: Store, w1: Hand, clock: Clock) -> None:
    task = await _running(store, w1)
    clock.advance(1)
    await submit(store)

    assert await w1.hand_back(task, reason="drain") == Status.QUEUED
    record = await read(store, task.id)
    assert (record.status, record.version, record.attempt, record.epoch) == (Status.QUEUED, 3, 0, 1)
    assert (record.worker, record.position, record.alive_ms) == ("", 0, None)
    assert (await store.events(task.id))[-1].data == b'{"status":"queued","attempt":0,"reason":"drain"}'
    again = await w1.claim_one()
    assert (again.id, again.attempt, again.epoch) == (task.id, 1, 2)


async def test_a_delayed_one_comes_back_when_it_is_due(store: Store, w1: Hand, clock: Clock) -> None:
    task = await _running(store, w1)
    assert await w1.hand_back(task, delay_ms=1000, reason="schema") == Status.RETRYING
    clock.advance(999)
    await store.promote(0)
    assert (await read(store, task.id)).status is Status.RETRYING
    clock.advance(1)
    await store.promote(0)
    assert (await w1.claim_one()).attempt == 1


async def test_a_canceling_one_ends_canceled_and_never_waits_again(store: Store, w1: Hand) -> None:
    task = await _running(store, w1)
    await store.cancel(task.id)
    assert await w1.hand_back(task, delay_ms=1000, reason="drain") == Status.CANCELED
    assert (await read(store, task.id)).status is Status.CANCELED
    assert await w1.claim() == []


async def test_it_wakes_an_idle_supervisor(store: Store, w1: Hand, redis_client: Redis) -> None:
    task = await _running(store, w1)
    await redis_client.delete(keys.wake(0, "default", "echo"))
    await w1.hand_back(task)
    assert await redis_client.llen(keys.wake(0, "default", "echo")) == 1


@pytest.mark.parametrize(("delay_ms", "cancel"), [(0, False), (1000, False), (0, True)])
async def test_a_repeat_after_a_lost_reply_has_no_second_effect(
    store: Store, w1: Hand, redis_client: Redis, delay_ms: int, cancel: bool
) -> None:
    task = await _running(store, w1)
    if cancel:
        await store.cancel(task.id)
    await w1.hand_back(task, delay_ms=delay_ms)
    before = await everything(redis_client)
    assert await w1.hand_back(task, delay_ms=delay_ms) == "done"
    assert await everything(redis_client) == before


async def test_a_repeat_during_the_next_attempt_has_no_effect(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis
) -> None:
    task = await _running(store, w1)
    await w1.hand_back(task)
    await w2.claim_one()
    before = await everything(redis_client)
    assert await w1.hand_back(task) == "done"
    assert await everything(redis_client) == before


async def test_only_the_token_of_the_claim_may_hand_back(store: Store, w1: Hand, w2: Hand, redis_client: Redis) -> None:
    old = await _running(store, w1)
    await w1.hand_back(old)
    await w1.hand_back(await w1.claim_one())
    current = await w1.claim_one()
    before = await everything(redis_client)

    assert await w2.hand_back(current) == "stale"
    assert await w1.hand_back(old) == "stale"
    assert await store.hand_back(0, w1.id, [HandBack(id=submission().id, epoch=1)]) == ["not_found"]
    assert await everything(redis_client) == before


async def test_what_ended_cannot_be_handed_back(store: Store, w1: Hand, redis_client: Redis) -> None:
    task = await _running(store, w1)
    await w1.finish(task)
    before = await everything(redis_client)
    assert await w1.hand_back(task) == "done"
    assert await everything(redis_client) == before


async def test_a_reaped_supervisor_that_wakes_is_refused(store: Store, w1: Hand, w2: Hand, redis_client: Redis) -> None:
    zombie = await _running(store, w1)
    await w2.reap(w1)
    for _ in range(2):  # while its task waits, and while its successor runs it
        before = await everything(redis_client)
        assert await w1.hand_back(zombie) == "stale"
        assert await everything(redis_client) == before
        await w2.claim()


async def test_one_no_child_received_is_as_if_never_started(store: Store, w1: Hand, clock: Clock) -> None:
    task = await _running(store, w1, deadline_ms=1000)
    await w1.hand_back(task, ran=False)
    assert (await read(store, task.id)).started_ms == 0

    clock.advance(999)
    assert (await store.promote(0))[1] == clock.now + 1
    clock.advance(1)
    await store.promote(0)
    assert (await read(store, task.id)).status is Status.EXPIRED


async def test_one_that_ran_has_met_its_start_deadline(store: Store, w1: Hand, clock: Clock) -> None:
    task = await _running(store, w1, deadline_ms=1000)
    await w1.hand_back(task, ran=True)
    clock.advance(5000)
    assert await store.promote(0) == (clock.now, 0)
    assert (await w1.claim_one()).id == task.id


async def test_a_met_deadline_stays_met_when_no_child_receives_the_next_attempt(
    store: Store, w1: Hand, clock: Clock
) -> None:
    await w1.hand_back(await _running(store, w1, deadline_ms=1000), ran=True)
    task = await w1.claim_one()
    clock.advance(5000)
    await w1.hand_back(task, ran=False)
    assert (await w1.beat()).next_due_ms == 0
    assert (await read(store, task.id)).started_ms > 0
    await store.promote(0)
    assert (await read(store, task.id)).status is Status.QUEUED


@pytest.mark.parametrize(("left_ms", "status"), [(-1, Status.EXPIRED), (0, Status.EXPIRED), (1, Status.QUEUED)])
async def test_a_delay_does_not_outlast_the_start_deadline(
    store: Store, w1: Hand, clock: Clock, left_ms: int, status: Status
) -> None:
    task = await _running(store, w1, deadline_ms=1000 + left_ms)
    await w1.hand_back(task, ran=False, delay_ms=1000)
    clock.advance(1000 + min(left_ms, 0))
    await store.promote(0)
    assert (await read(store, task.id)).status is status


async def test_who_was_there_too_often_waits_in_a_lane_for_tasks_that_run_alone(store: Store, w1: Hand) -> None:
    await submit(store, submission("get"))
    for _ in range(NEIGHBOUR_LIMIT):
        [task] = await w1.claim(sync=0, free_async=1)
        assert not (await w1.beat(task)).suspects
        await w1.hand_back(task, reason="neighbour")

    assert await w1.claim(sync=1, free_async=5) == []
    answer = await w1.beat()
    assert (answer.suspects, answer.claimable) == (True, True)
    [alone] = await _claim_alone(w1)
    assert (alone.id, alone.attempt, alone.neighbours) == (task.id, 1, NEIGHBOUR_LIMIT)


async def test_a_suspect_runs_alone_at_once_and_for_ever(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store, submission("get"))
    [task] = await w1.claim(sync=0, free_async=1)
    await w1.hand_back(task, reason="suspect")

    for attempt in (1, 2, 3):
        assert await w1.claim(sync=1, free_async=5) == []
        [task] = await _claim_alone(w1)
        assert task.attempt == attempt
        await w1.finish(task, "retry", retry_delay_ms=1000)
        clock.advance(1000)
        await store.promote(0)
    assert (await read(store, task_id)).status is Status.FAILED
    await store.redrive(task_id, request_id="1", limits=Limits())
    assert [each.id for each in await _claim_alone(w1)] == [task_id]


async def test_suspects_are_canceled_and_expire_as_others_do(store: Store, w1: Hand, clock: Clock) -> None:
    ids = await submit(store, submission("get"), submission("get", deadline_ms=1000))
    for task in await w1.claim(sync=0, free_async=2):
        await w1.hand_back(task, reason="suspect", ran=False)
    await store.cancel(ids[0])
    clock.advance(1000)
    await store.promote(0)

    assert [(await read(store, each)).status for each in ids] == [Status.CANCELED, Status.EXPIRED]
    assert not (await w1.beat()).suspects


async def test_a_suspect_whose_type_has_become_sync_is_claimed_as_any_other(store: Store, w1: Hand) -> None:
    await submit(store, submission("get"))
    [task] = await w1.claim(sync=0, free_async=1)
    await w1.hand_back(task, reason="suspect")

    [again] = await w1.claim(sync=1, served=[Served("default", "get", "sync")])
    assert again.id == task.id


async def _claim_alone(hand: Hand) -> list[Claimed]:
    return await hand.store.claim(
        0, hand.id, served=SERVED, free_sync=1, free_async=1, free_alone=1, lease_ms=hand.last_beat.lease_ms
    )


async def test_being_a_dead_ones_neighbour_is_counted_and_told_at_the_next_claim(store: Store, w1: Hand) -> None:
    await submit(store)
    for expected in range(3):
        task = await w1.claim_one()
        assert (task.neighbours, task.attempt) == (expected, 1)
        await w1.hand_back(task, reason="neighbour")
    await w1.hand_back(await w1.claim_one(), reason="drain")
    assert (await w1.claim_one()).neighbours == 3

"""cancel: scheduled | queued | retrying -> canceled; running -> canceling."""

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import NotCancelable, TaskNotFound
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import Hand, read, submission, submit
from tests.contract.invariants import everything


async def _waiting(store: Store, hand: Hand, status: Status) -> str:
    delay_ms = 1000 if status is Status.SCHEDULED else 0
    [task_id] = await submit(store, submission(delay_ms=delay_ms, deadline_ms=5000))
    if status is Status.RETRYING:
        await hand.finish(await hand.claim_one(), "retry", retry_delay_ms=1000)
    assert (await read(store, task_id)).status is status
    return task_id


WAITING = [Status.SCHEDULED, Status.QUEUED, Status.RETRYING]


@pytest.mark.parametrize("status", WAITING)
async def test_what_waits_is_canceled_at_once(store: Store, w1: Hand, clock: Clock, status: Status) -> None:
    task_id = await _waiting(store, w1, status)
    before = await read(store, task_id)
    assert await store.cancel(task_id) is Status.CANCELED

    record = await read(store, task_id)
    assert (record.status, record.version, record.attempt) == (Status.CANCELED, before.version + 1, before.attempt)
    assert (record.finished_ms, record.position) == (clock.now, None)
    event = (await store.events(task_id))[-1]
    assert event.data == f'{{"status":"canceled","attempt":{before.attempt}}}'.encode()


@pytest.mark.parametrize("status", WAITING)
async def test_what_was_canceled_never_runs(store: Store, w1: Hand, clock: Clock, status: Status) -> None:
    task_id = await _waiting(store, w1, status)
    await store.cancel(task_id)
    clock.advance(10_000)
    assert await store.promote(0) == (clock.now, 0)
    assert await w1.claim(sync=9) == []
    assert (await read(store, task_id)).status is Status.CANCELED


async def test_one_of_many_is_canceled_and_the_others_stay(store: Store, w1: Hand) -> None:
    first, second, third = await submit(store, *(submission() for _ in range(3)))
    await store.cancel(second)
    assert [task.id for task in await w1.claim(sync=9)] == [first, third]


async def test_what_runs_is_canceling_until_it_has_stopped(store: Store, w1: Hand, redis_client: Redis) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    async with redis_client.pubsub() as pubsub:
        await pubsub.subscribe(keys.inbox(0, "w1"))
        await pubsub.get_message(timeout=30)
        assert await store.cancel(task_id) is Status.CANCELING
        message = await pubsub.get_message(timeout=30)

    assert message is not None
    assert message["data"] == f"cancel {task_id}".encode()
    record = await read(store, task_id)
    assert (record.status, record.version, record.worker) == (Status.CANCELING, 3, "w1")
    assert record.alive_ms is not None
    assert (await store.events(task_id))[-1].data == b'{"status":"canceling","attempt":1}'
    assert await w1.finish(task, "canceled") == Status.CANCELED


@pytest.mark.parametrize("status", [*WAITING, Status.RUNNING])
async def test_a_repeat_after_a_lost_reply_has_no_second_effect(
    store: Store, w1: Hand, redis_client: Redis, status: Status
) -> None:
    if status is Status.RUNNING:
        [task_id] = await submit(store)
        await w1.claim_one()
    else:
        task_id = await _waiting(store, w1, status)
    first = await store.cancel(task_id)
    before = await everything(redis_client)
    assert await store.cancel(task_id) is first
    assert await everything(redis_client) == before


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
async def test_what_ended_otherwise_is_refused(store: Store, w1: Hand, redis_client: Redis, outcome: str) -> None:
    [task_id] = await submit(store)
    await w1.finish(await w1.claim_one(), outcome)
    before = await everything(redis_client)
    with pytest.raises(NotCancelable) as refused:
        await store.cancel(task_id)
    assert refused.value.status == outcome
    assert await everything(redis_client) == before


async def test_what_expired_is_refused(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store, submission(deadline_ms=1))
    clock.advance(1)
    await store.promote(0)
    with pytest.raises(NotCancelable, match="expired"):
        await store.cancel(task_id)


async def test_what_does_not_exist_is_not_found(store: Store, redis_client: Redis) -> None:
    with pytest.raises(TaskNotFound):
        await store.cancel(submission().id)
    assert await redis_client.dbsize() == 0


@pytest.mark.parametrize("running", [False, True])
async def test_the_task_of_another_tenant_is_not_found(
    store: Store, w1: Hand, redis_client: Redis, running: bool
) -> None:
    [task_id] = await submit(store, submission(tenant="a"))
    if running:
        await w1.claim_one()
    before = await everything(redis_client)
    with pytest.raises(TaskNotFound):
        await store.cancel(task_id, tenant="b")
    assert await everything(redis_client) == before
    await store.cancel(task_id, tenant="a")


async def test_a_reported_canceling_task_stays_canceling(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    await store.cancel(task_id)
    assert await w1.report(task, progress=b"{}") == "ok"
    assert (await read(store, task_id)).status is Status.CANCELING

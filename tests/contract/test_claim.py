"""claim: queued -> running, fairly, for free slots only; queued -> expired at the deadline."""

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import NoSuchWorker
from taskgate.contract.models import Served
from taskgate.contract.script import BATCH
from taskgate.contract.states import Status
from taskgate.contract.store import CLAIM_BYTES, Store
from tests.conftest import Clock
from tests.contract.conftest import LEASE_MS, SERVED, Hand, read, submission, submit
from tests.contract.invariants import everything


async def test_a_claimed_task_runs(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store, submission(payload=b"[1]"))
    clock.advance(1500)
    task = await w1.claim_one()

    assert (task.id, task.epoch, task.attempt, task.payload, task.checkpoint) == (task_id, 1, 1, b"[1]", b"")
    assert (task.created_ms, task.claimed_ms) == (clock.now - 1500, clock.now)
    record = await read(store, task_id)
    assert (record.status, record.version, record.attempt, record.epoch) == (Status.RUNNING, 2, 1, 1)
    assert (record.worker, record.started_ms, record.lease_ms, record.position) == ("w1", clock.now, LEASE_MS, None)
    assert record.alive_ms is not None
    assert 0 < record.alive_ms <= LEASE_MS


async def test_a_claim_is_the_first_event_of_a_task(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    assert await store.events(task_id) == []
    await w1.claim_one()

    [event] = await store.events(task_id)
    assert (event.name, event.seq, event.data) == ("status", 2, b'{"status":"running","attempt":1,"worker":"w1"}')


async def test_a_supervisor_that_has_not_beaten_gets_nothing(store: Store, redis_client: Redis) -> None:
    await submit(store)
    before = await everything(redis_client)
    with pytest.raises(NoSuchWorker):
        await Hand(store, "w1").claim()
    assert await everything(redis_client) == before


async def test_a_reaped_supervisor_beats_again_before_it_claims(store: Store, w1: Hand, w2: Hand) -> None:
    await submit(store)
    await w2.reap(w1)
    with pytest.raises(NoSuchWorker):
        await w1.claim()
    await w1.beat()
    await w1.claim_one()


async def test_no_more_is_taken_than_slots_are_free(store: Store, w1: Hand) -> None:
    await submit(store, *(submission() for _ in range(5)), *(submission("get") for _ in range(5)))

    assert [task.spec.type for task in await w1.claim(sync=2, free_async=0)] == ["echo"] * 2
    assert [task.spec.type for task in await w1.claim(sync=0, free_async=3)] == ["get"] * 3
    assert await w1.claim(sync=0, free_async=0) == []
    assert sorted(task.spec.type for task in await w1.claim(sync=9, free_async=9)) == ["echo"] * 3 + ["get"] * 2


async def test_only_served_types_of_served_queues_are_taken(store: Store, w1: Hand) -> None:
    await submit(store, submission("unknown"), submission(queue="elsewhere"), submission("other"))
    [task] = await w1.claim(sync=9)
    assert task.spec.type == "other"


async def test_the_queue_that_is_named_first_begins(store: Store, w1: Hand) -> None:
    served = [Served("one", "echo", "sync"), Served("other", "echo", "sync")]
    for order in (served, served[::-1]):
        await submit(store, submission(queue="one"), submission(queue="other"))
        begin = [task.spec.queue for _ in range(2) for task in await w1.claim(sync=1, served=order)]
        assert begin == [each.queue for each in order]


async def test_higher_priority_goes_first_and_equals_in_order(store: Store, w1: Hand, clock: Clock) -> None:
    items = [submission(priority=priority) for priority in (5, 0, 9, 5, 9)]
    for item in items:
        await submit(store, item)
        clock.advance(1)
    taken = [task.id for task in await w1.claim(sync=9)]
    assert taken == [items[2].id, items[4].id, items[0].id, items[3].id, items[1].id]


@pytest.mark.parametrize(("age_ms", "first"), [(59_999, 6), (60_001, 5)])
async def test_a_minute_of_waiting_weighs_as_much_as_one_priority(
    store: Store, w1: Hand, clock: Clock, age_ms: int, first: int
) -> None:
    await submit(store, submission(priority=5))
    clock.advance(age_ms)
    await submit(store, submission(priority=6))
    assert (await w1.claim_one()).spec.priority == first


async def test_types_take_turns_however_many_wait(store: Store, w1: Hand) -> None:
    await submit(store, *(submission() for _ in range(8)), *(submission("other") for _ in range(3)))
    types = [(await w1.claim_one()).spec.type for _ in range(8)]
    assert types == ["echo", "other"] * 3 + ["echo"] * 2


async def test_types_take_turns_within_one_claim(store: Store, w1: Hand) -> None:
    await submit(store, *(submission() for _ in range(8)), *(submission("other") for _ in range(8)))
    assert [task.spec.type for task in await w1.claim(sync=6)] == ["echo", "other"] * 3


async def test_a_new_type_gets_no_credit_for_having_been_away(store: Store, w1: Hand) -> None:
    await submit(store, *(submission() for _ in range(30)))
    await w1.claim(sync=20)
    await submit(store, *(submission("other") for _ in range(10)))
    types = [task.spec.type for task in await w1.claim(sync=10)]
    assert types.count("echo") == types.count("other") == 5


async def test_a_type_that_nobody_serves_gives_newcomers_no_credit(store: Store, w1: Hand) -> None:
    await submit(store, submission("gone"), *(submission() for _ in range(30)))
    await w1.claim(sync=20)
    await submit(store, *(submission("other") for _ in range(10)))
    types = [task.spec.type for task in await w1.claim(sync=10)]
    assert types.count("echo") == types.count("other") == 5


async def test_async_types_give_sync_newcomers_no_credit(store: Store, w1: Hand) -> None:
    await submit(store, submission("get"), submission("get"), *(submission() for _ in range(30)))
    await w1.claim(sync=20, free_async=1)
    await submit(store, *(submission("other") for _ in range(10)))
    types = [task.spec.type for task in await w1.claim(sync=10)]
    assert types.count("echo") == types.count("other") == 5


async def test_tenants_take_turns_however_many_wait(store: Store, w1: Hand) -> None:
    await submit(store, *(submission(tenant="a") for _ in range(8)), *(submission(tenant="b") for _ in range(3)))
    assert [task.spec.tenant for task in await w1.claim(sync=8)] == ["a", "b"] * 3 + ["a"] * 2


async def test_a_new_tenant_gets_no_credit_for_having_been_away(store: Store, w1: Hand) -> None:
    await submit(store, *(submission(tenant="a") for _ in range(30)))
    await w1.claim(sync=20)
    await submit(store, *(submission(tenant="b") for _ in range(10)))
    tenants = [task.spec.tenant for task in await w1.claim(sync=10)]
    assert tenants.count("a") == tenants.count("b") == 5


async def test_priority_orders_within_a_tenant_not_between_tenants(store: Store, w1: Hand) -> None:
    await submit(store, *(submission(tenant="a", priority=9) for _ in range(4)), submission(tenant="b", priority=0))
    assert [task.spec.tenant for task in await w1.claim(sync=2)] == ["a", "b"]


async def test_a_marker_is_left_only_while_something_waits(store: Store, w1: Hand, redis_client: Redis) -> None:
    await submit(store, submission(), submission(), submission("other"))
    echo, other = keys.wake(0, "default", "echo"), keys.wake(0, "default", "other")
    await redis_client.delete(echo, other)

    await w1.claim(served=SERVED[:1])
    assert await redis_client.llen(echo) == 1
    await redis_client.delete(echo)
    await w1.claim(served=SERVED[:1])
    assert not await redis_client.exists(echo)
    await w1.claim(sync=0)
    assert await redis_client.llen(other) == 1


async def test_bytes_of_one_claim_are_bounded(store: Store, w1: Hand) -> None:
    await submit(store, *(submission(payload=b"x" * (CLAIM_BYTES // 2)) for _ in range(5)))
    assert len(await w1.claim(sync=9)) == 2
    assert len(await w1.claim(sync=9)) == 2
    assert len(await w1.claim(sync=9)) == 1


async def test_tasks_of_one_claim_are_bounded(store: Store, w1: Hand) -> None:
    """Of 8,000, the script could not have named all: what had been started was held by nobody, and never reaped."""
    for _ in range(3):
        await submit(store, *(submission() for _ in range(667)))
    assert len(await w1.claim(sync=9000)) == 2000
    assert len(await w1.claim(sync=9000)) == 1


async def test_a_task_larger_than_the_bound_is_taken_alone(store: Store, w1: Hand) -> None:
    await submit(store, submission(payload=b"x" * (CLAIM_BYTES + 1)), submission())
    assert len(await w1.claim(sync=9)) == 1


async def test_a_task_may_start_until_just_before_its_deadline(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store, submission(deadline_ms=1000))
    clock.advance(999)
    assert (await w1.claim_one()).id == task_id


async def test_at_its_deadline_a_task_expires_and_takes_no_slot(store: Store, w1: Hand, clock: Clock) -> None:
    [late] = await submit(store, submission(deadline_ms=1000))
    [next_id] = await submit(store)
    clock.advance(1000)

    assert [task.id for task in await w1.claim()] == [next_id]
    record = await read(store, late)
    assert (record.status, record.attempt, record.finished_ms) == (Status.EXPIRED, 0, clock.now)
    assert [event.data for event in await store.events(late)] == [b'{"status":"expired","attempt":0}']


async def test_one_claim_expires_a_bounded_number(store: Store, w1: Hand, clock: Clock) -> None:
    ids = await submit(store, *(submission(deadline_ms=1000) for _ in range(BATCH + 1)))
    clock.advance(1000)
    assert await w1.claim() == []
    assert [record.status for record in await store.read(ids) if record] == [Status.EXPIRED] * BATCH + [Status.QUEUED]


async def test_the_deadline_ends_with_the_first_start(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store, submission(deadline_ms=1000))
    await w1.finish(await w1.claim_one(), "retry")
    clock.advance(1000)

    assert await store.promote(0) == (clock.now, 0)
    assert (await w1.claim_one()).id == task_id


async def test_every_claim_raises_the_epoch_and_never_lowers_it(store: Store, w1: Hand) -> None:
    await submit(store)
    first = await w1.claim_one()
    await w1.hand_back(first)
    second = await w1.claim_one()
    await w1.finish(second, "retry")
    third = await w1.claim_one()
    assert [(task.epoch, task.attempt) for task in (first, second, third)] == [(1, 1), (2, 1), (3, 2)]


async def test_an_attempt_starts_without_the_progress_of_the_one_before(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    await w1.report(task, progress=b'{"current":80}', effort=b'{"cpu_ms":5}', checkpoint=b"[7]", health="computing")
    await w1.finish(task, "retry", error=b'{"kind":"crash"}')
    assert (await read(store, task_id)).progress == b'{"current":80}'

    assert (await w1.claim_one()).checkpoint == b"[7]"
    record = await read(store, task_id)
    assert (record.progress, record.effort, record.health, record.error) == (b"", b"", "", b'{"kind":"crash"}')


async def test_nothing_to_take_changes_nothing(w1: Hand, redis_client: Redis) -> None:
    before = await everything(redis_client)
    assert await w1.claim(sync=9, free_async=9) == []
    assert await everything(redis_client) == before


async def test_a_record_that_cannot_be_read_fails_alone(store: Store, w1: Hand, redis_client: Redis) -> None:
    broken, well = await submit(store, submission(), submission())
    await redis_client.hset(keys.task(0, broken), "spec", b'{"id":')

    assert [task.id for task in await w1.claim(sync=2)] == [well]
    records = await store.read([broken, well])
    assert [record and record.status for record in records] == [Status.FAILED, Status.RUNNING]

"""redrive: failed -> queued with a fresh set of attempts."""

import pytest
from redis.asyncio import Redis

from taskgate.contract.errors import NotDead, QueueFull, TaskNotFound
from taskgate.contract.models import Limits, QueueLimits
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock, dead_letters
from tests.contract.conftest import LIMITS, Hand, read, submission, submit
from tests.contract.invariants import everything


async def _dead(store: Store, hand: Hand, **more: object) -> str:
    [task_id] = await submit(store, submission(**more))  # type: ignore[arg-type]
    task = await hand.claim_one()
    await hand.report(task, checkpoint=b"[7]")
    await hand.finish(task, "failed", error=b'{"kind":"exception"}')
    return task_id


async def test_a_dead_letter_starts_again_from_its_checkpoint(store: Store, w1: Hand) -> None:
    task_id = await _dead(store, w1)
    before = await read(store, task_id)
    await store.redrive(task_id, request_id="r", limits=LIMITS)

    record = await read(store, task_id)
    assert (record.status, record.version, record.attempt) == (Status.QUEUED, before.version + 1, 0)
    assert (record.finished_ms, record.purge_ms, record.started_ms, record.worker) == (0, 0, 0, "")
    assert await dead_letters(store) == []
    task = await w1.claim_one()
    assert (task.id, task.attempt, task.epoch, task.checkpoint) == (task_id, 1, 2, b"[7]")


async def test_its_events_are_kept_and_go_on(store: Store, w1: Hand) -> None:
    task_id = await _dead(store, w1)
    before = await store.events(task_id)
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    *kept, event = await store.events(task_id)
    assert kept == before
    assert event.data == b'{"status":"queued","attempt":0,"reason":"redrive"}'


async def test_it_has_all_its_attempts_again(store: Store, w1: Hand) -> None:
    task_id = await _dead(store, w1)
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    assert await w1.finish(await w1.claim_one(), "retry", max_attempts=2) == "queued"
    assert await w1.finish(await w1.claim_one(), "retry", max_attempts=2) == "failed"


async def test_a_start_deadline_that_was_met_stays_met(store: Store, w1: Hand, clock: Clock) -> None:
    task_id = await _dead(store, w1, deadline_ms=1000)
    clock.advance(1000)
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    await store.promote(0)
    task = await w1.claim_one()
    await w1.hand_back(task, ran=False)
    assert (await read(store, task_id)).status is Status.QUEUED


async def test_the_trimmer_leaves_it_alone(store: Store, w1: Hand, clock: Clock) -> None:
    task_id = await _dead(store, w1)
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    clock.advance(10**12)
    assert await store.trim(0) == 0
    assert (await read(store, task_id)).status is Status.QUEUED


async def test_the_same_request_again_has_no_second_effect(store: Store, w1: Hand, redis_client: Redis) -> None:
    task_id = await _dead(store, w1)
    await store.redrive(task_id, request_id="r", limits=LIMITS)

    async def repeat() -> None:
        before = await everything(redis_client)
        await store.redrive(task_id, request_id="r", limits=Limits(queue=QueueLimits(tasks=0)))
        assert await everything(redis_client) == before

    await repeat()
    task = await w1.claim_one()
    await repeat()
    await w1.finish(task, "failed")
    await repeat()


async def test_another_request_while_it_waits_is_refused_and_works_after_the_next_failure(
    store: Store, w1: Hand, redis_client: Redis
) -> None:
    task_id = await _dead(store, w1)
    await store.redrive(task_id, request_id="r1", limits=LIMITS)
    before = await everything(redis_client)
    with pytest.raises(NotDead, match="queued"):
        await store.redrive(task_id, request_id="r2", limits=LIMITS)
    assert await everything(redis_client) == before

    await w1.finish(await w1.claim_one(), "failed")
    await store.redrive(task_id, request_id="r2", limits=LIMITS)
    assert (await read(store, task_id)).status is Status.QUEUED


@pytest.mark.parametrize("ended", [True, False])
async def test_only_failed_tasks_are_redriven(store: Store, w1: Hand, redis_client: Redis, ended: bool) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    if ended:
        await w1.finish(task)
    before = await everything(redis_client)
    with pytest.raises(NotDead) as refused:
        await store.redrive(task_id, request_id="r", limits=LIMITS)
    assert refused.value.status == ("succeeded" if ended else "running")
    assert await everything(redis_client) == before


async def test_what_is_not_there_or_not_the_tenants_is_not_found(store: Store, w1: Hand, redis_client: Redis) -> None:
    task_id = await _dead(store, w1, tenant="a")
    before = await everything(redis_client)
    with pytest.raises(TaskNotFound):
        await store.redrive(submission().id, request_id="r", limits=LIMITS)
    with pytest.raises(TaskNotFound):
        await store.redrive(task_id, request_id="r", limits=LIMITS, tenant="b")
    assert await everything(redis_client) == before
    await store.redrive(task_id, request_id="r", limits=LIMITS, tenant="a")


@pytest.mark.parametrize(
    ("limits", "name"),
    [(Limits(queue=QueueLimits(tasks=1)), "queue-tasks"), (Limits(queue=QueueLimits(bytes=4096)), "queue-bytes")],
)
async def test_a_full_queue_refuses_and_the_dead_letter_stays(
    store: Store, w1: Hand, limits: Limits, name: str
) -> None:
    task_id = await _dead(store, w1)
    await submit(store)
    with pytest.raises(QueueFull) as refused:
        await store.redrive(task_id, request_id="r", limits=limits)
    assert (refused.value.limit, refused.value.queue) == (name, "default")
    assert 0 < refused.value.retry_after_s <= 60
    assert await dead_letters(store) == [task_id]

"""report: what a running attempt shows; its state stays."""

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import Report
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.contract.conftest import Hand, read, submission, submit
from tests.contract.invariants import everything


async def test_a_report_shows_what_changed_and_keeps_the_rest(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    assert await w1.report(task, 1, progress=b'{"current":1}', effort=b'{"cpu_ms":1}', health="computing") == "ok"
    assert await w1.report(task, 2, progress=b'{"current":2}') == "ok"

    record = await read(store, task_id)
    assert (record.status, record.version, record.attempt) == (Status.RUNNING, 4, 1)
    assert (record.progress, record.effort, record.health) == (b'{"current":2}', b'{"cpu_ms":1}', "computing")


async def test_events_go_to_the_stream_in_order_each_with_its_own_seq(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    await w1.report(task, events=[("progress", b'{"current":1}'), ("custom", b'{"name":"x"}')])
    assert [(event.name, event.seq, event.data) for event in await store.events(task_id)][1:] == [
        ("progress", 3, b'{"current":1}'),
        ("custom", 4, b'{"name":"x"}'),
    ]
    assert (await read(store, task_id)).version == 4


@pytest.mark.parametrize("events", [[], [("progress", b"{}")]])
async def test_each_report_wakes_whoever_watches(
    store: Store, w1: Hand, redis_client: Redis, events: list[tuple[str, bytes]]
) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    async with redis_client.pubsub() as pubsub:
        await pubsub.subscribe(keys.changes(0, task_id))
        await pubsub.get_message(timeout=30)
        await w1.report(task, progress=b"{}", events=events)
        message = await pubsub.get_message(timeout=30)
    assert message is not None
    assert message["data"] == b"3"


async def test_a_stream_keeps_a_bounded_number_of_events(store: Store, w1: Hand, redis_client: Redis) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    for number in range(1, 11):
        await w1.report(task, number, events=[("custom", b'{"n":%d}' % n) for n in range(100)])
    kept = await redis_client.xlen(keys.events(0, task_id))
    assert 500 <= kept < 600


async def test_reports_sent_again_after_a_lost_reply_have_no_second_effect(
    store: Store, w1: Hand, redis_client: Redis
) -> None:
    await submit(store)
    task = await w1.claim_one()
    items = [
        Report(id=task.id, epoch=1, number=number, progress=b'{"current":%d}' % number, events=[("custom", b"{}")])
        for number in (1, 2, 3)
    ]
    assert await store.report(0, "w1", items) == ["ok"] * 3
    before = await everything(redis_client)
    assert await store.report(0, "w1", items) == ["done"] * 3
    assert await everything(redis_client) == before


async def test_numbers_begin_again_with_every_attempt(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    first = await w1.claim_one()
    await w1.report(first, 7, progress=b'{"current":7}')
    await w1.finish(first, "retry")
    second = await w1.claim_one()
    assert await w1.report(second, 1, progress=b'{"current":1}') == "ok"
    assert (await read(store, task_id)).progress == b'{"current":1}'


async def test_a_stage_is_that_of_its_attempt_alone(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    assert (await read(store, task_id)).seen_stage() == "waiting for a worker"
    task = await w1.claim_one()
    assert (await read(store, task_id)).seen_stage() is None
    await w1.report(task, 1, stage=f"{task.epoch}:starting in its child")
    assert (await read(store, task_id)).seen_stage() == "starting in its child"
    await w1.report(task, 2, stage=f"{task.epoch}:")
    assert (await read(store, task_id)).seen_stage() is None
    await w1.report(task, 3, stage=f"{task.epoch}:stopping")
    await w1.finish(task, "retry", retry_delay_ms=5)
    assert (await read(store, task_id)).seen_stage() == "waiting for the next attempt"
    await store.cancel(task_id)
    assert (await read(store, task_id)).seen_stage() is None


async def test_the_stage_of_an_attempt_before_is_not_shown(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    await w1.report(task, stage=f"{task.epoch}:stopping")
    await w1.hand_back(task)
    assert (await read(store, task_id)).seen_stage() == "waiting for a worker"
    await w1.claim_one()
    assert (await read(store, task_id)).seen_stage() is None


async def test_only_the_holder_reports(store: Store, w1: Hand, w2: Hand, redis_client: Redis) -> None:
    await submit(store)
    old = await w1.claim_one()
    await w1.hand_back(old)
    await w1.hand_back(await w1.claim_one())
    current = await w1.claim_one()
    before = await everything(redis_client)

    assert await w2.report(current, progress=b"{}") == "stale"
    assert await w1.report(old, progress=b"{}") == "stale"
    assert await store.report(0, "w1", [Report(id=submission().id, epoch=1, number=1)]) == ["not_found"]
    assert await everything(redis_client) == before


async def test_a_late_report_does_not_touch_what_ended(store: Store, w1: Hand, redis_client: Redis) -> None:
    await submit(store)
    task = await w1.claim_one()
    await w1.finish(task)
    before = await everything(redis_client)
    assert await w1.report(task, progress=b"{}", events=[("custom", b"{}")]) == "done"
    assert await everything(redis_client) == before


async def test_a_reaped_supervisor_that_wakes_is_refused(store: Store, w1: Hand, w2: Hand, redis_client: Redis) -> None:
    await submit(store)
    zombie = await w1.claim_one()
    await w2.reap(w1)
    for _ in range(2):  # while its task waits, and while its successor runs it
        before = await everything(redis_client)
        assert await w1.report(zombie, progress=b"{}", checkpoint=b"[1]", events=[("custom", b"{}")]) == "stale"
        assert await everything(redis_client) == before
        await w2.claim()


async def test_one_refused_report_does_not_stop_the_others(store: Store, w1: Hand) -> None:
    await submit(store, submission(), submission())
    first, second = await w1.claim(sync=2)
    items = [Report(id=first.id, epoch=9, number=1), Report(id=second.id, epoch=1, number=1, health="waiting")]
    assert await store.report(0, "w1", items) == ["stale", "ok"]
    assert (await read(store, second.id)).health == "waiting"

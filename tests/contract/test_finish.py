"""finish: running -> succeeded | failed | retrying | queued; canceling -> canceled | succeeded."""

from typing import Any

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import Claimed, Finish
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock, dead_letters
from tests.contract.conftest import Hand, read, submission, submit
from tests.contract.invariants import everything

DAY_MS = 86_400_000
OUTCOMES: list[tuple[str, dict[str, Any], Status]] = [
    ("succeeded", {}, Status.SUCCEEDED),
    ("failed", {}, Status.FAILED),
    ("canceled", {}, Status.FAILED),
    ("retry", {"retry_delay_ms": 1}, Status.RETRYING),
    ("retry", {"retry_delay_ms": 0}, Status.QUEUED),
    ("retry", {"max_attempts": 1}, Status.FAILED),
]


async def _running(store: Store, hand: Hand, **more: object) -> Claimed:
    await submit(store, submission(**more))  # type: ignore[arg-type]
    return await hand.claim_one()


@pytest.mark.parametrize(("outcome", "more", "status"), OUTCOMES)
async def test_an_attempt_ends_by_its_outcome(
    store: Store, w1: Hand, clock: Clock, outcome: str, more: dict[str, Any], status: Status
) -> None:
    task = await _running(store, w1)
    clock.advance(10)
    assert await w1.finish(task, outcome, error=b'{"kind":"exception"}', **more) == status

    record = await read(store, task.id)
    assert (record.status, record.version, record.attempt, record.epoch) == (status, 3, 1, 1)
    event = (await store.events(task.id))[-1]
    assert (event.name, event.seq) == ("status", 3)
    assert event.data == f'{{"status":"{status}","attempt":1,"error":{{"kind":"exception"}}}}'.encode()


async def test_a_success_keeps_the_result_and_the_last_numbers(store: Store, w1: Hand, clock: Clock) -> None:
    task = await _running(store, w1)
    await w1.report(task, health="computing")
    clock.advance(10)
    await w1.finish(task, result=b'{"a": 1}', progress=b'{"percent":100}', effort=b'{"cpu_ms":3}')

    assert await store.result(task.id) == (Status.SUCCEEDED, b'{"a": 1}')
    record = await read(store, task.id)
    assert (record.progress, record.effort, record.has_result) == (b'{"percent":100}', b'{"cpu_ms":3}', True)
    assert (record.finished_ms, record.purge_ms, record.health) == (clock.now, clock.now + DAY_MS, "")


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "retry"])
async def test_the_last_progress_comes_before_the_end_in_the_stream(store: Store, w1: Hand, outcome: str) -> None:
    task = await _running(store, w1)
    await w1.report(task, progress=b'{"percent":1}')
    await w1.finish(task, outcome, progress=b'{"percent":100}')

    *_, progress, status = await store.events(task.id)
    assert (progress.name, progress.data, status.name) == ("progress", b'{"percent":100}', "status")
    assert [progress.seq, status.seq, (await read(store, task.id)).version] == [4, 5, 5]


async def test_a_success_forgets_the_error_and_checkpoint_of_attempts_before(
    store: Store, w1: Hand, redis_client: Redis
) -> None:
    task = await _running(store, w1)
    await w1.report(task, checkpoint=b"[1]")
    await w1.finish(task, "retry", error=b'{"kind":"crash"}')
    await w1.finish(await w1.claim_one())

    assert (await read(store, task.id)).error == b""
    assert not await redis_client.hexists(keys.task(0, task.id), "checkpoint")


async def test_a_failure_becomes_a_dead_letter_kept_for_longer(store: Store, w1: Hand, clock: Clock) -> None:
    task = await _running(store, w1)
    await w1.finish(task, "failed", error=b'{"kind":"exception"}', retention_ms=1000, dead_retention_ms=5000)

    assert await dead_letters(store) == [task.id]
    record = await read(store, task.id)
    assert (record.error, record.purge_ms) == (b'{"kind":"exception"}', clock.now + 5000)


async def test_dead_letters_are_listed_by_the_time_they_failed(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, *(submission() for _ in range(3)))
    first, second, third = await w1.claim(sync=3)
    for task in (second, third, first):
        clock.advance(1)
        await w1.finish(task, "failed")

    assert await dead_letters(store) == [first.id, third.id, second.id]


async def test_a_retry_waits_for_its_delay(store: Store, w1: Hand, clock: Clock) -> None:
    task = await _running(store, w1)
    await w1.finish(task, "retry", retry_delay_ms=1000)

    record = await read(store, task.id)
    assert (record.due_ms, record.worker, record.finished_ms) == (clock.now + 1000, "", 0)
    clock.advance(999)
    assert await store.promote(0) == (clock.now, clock.now + 1)
    assert await w1.claim() == []
    clock.advance(1)
    assert await store.promote(0) == (clock.now, 0)
    assert (await w1.claim_one()).attempt == 2


async def test_a_retry_without_delay_keeps_its_place(store: Store, w1: Hand, clock: Clock) -> None:
    task = await _running(store, w1)
    clock.advance(1)
    await submit(store)
    await w1.finish(task, "retry")
    assert (await w1.claim_one()).id == task.id


async def test_attempts_end_at_their_maximum(store: Store, w1: Hand) -> None:
    task = await _running(store, w1)
    for wanted in (Status.QUEUED, Status.QUEUED, Status.FAILED):
        assert await w1.finish(task, "retry", max_attempts=3) == wanted
        task = (await w1.claim())[0] if wanted is Status.QUEUED else task
    assert task.attempt == 3


@pytest.mark.parametrize(("outcome", "more", "status"), OUTCOMES)
async def test_a_canceling_task_ends_canceled_unless_it_had_succeeded(
    store: Store, w1: Hand, outcome: str, more: dict[str, Any], status: Status
) -> None:
    task = await _running(store, w1)
    await store.cancel(task.id)
    wanted = Status.SUCCEEDED if status is Status.SUCCEEDED else Status.CANCELED

    assert await w1.finish(task, outcome, **more) == wanted
    assert (await read(store, task.id)).status is wanted


@pytest.mark.parametrize(("outcome", "more", "status"), OUTCOMES)
async def test_a_repeat_after_a_lost_reply_has_no_second_effect(
    store: Store, w1: Hand, redis_client: Redis, outcome: str, more: dict[str, Any], status: Status
) -> None:
    task = await _running(store, w1)
    fields = {**more, "error": b"{}", "submitted": [submission()] if outcome == "succeeded" else []}
    assert await w1.finish(task, outcome, **fields) == status
    before = await everything(redis_client)

    assert await w1.finish(task, outcome, **fields) == "done"
    assert await everything(redis_client) == before


async def test_a_repeat_during_the_next_attempt_has_no_effect(store: Store, w1: Hand, redis_client: Redis) -> None:
    task = await _running(store, w1)
    await w1.finish(task, "retry")
    await w1.claim_one()
    before = await everything(redis_client)

    assert await w1.finish(task, "retry") == "done"
    assert await everything(redis_client) == before


async def test_only_the_token_of_the_claim_may_finish(store: Store, w1: Hand, w2: Hand, redis_client: Redis) -> None:
    task = await _running(store, w1)
    await w1.finish(task, "retry")
    await w1.finish(await w1.claim_one(), "retry")
    current = await w1.claim_one()
    before = await everything(redis_client)

    assert await w2.finish(current) == "stale"
    assert await w1.finish(task) == "stale"
    assert await everything(redis_client) == before


async def test_what_does_not_exist_is_not_finished(store: Store, w1: Hand, redis_client: Redis) -> None:
    before = await everything(redis_client)
    items = [Finish(id=submission().id, epoch=1, outcome="succeeded", result=b"1")]
    assert await store.finish(0, w1.id, items) == ["not_found"]
    assert await everything(redis_client) == before


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "retry", "canceled"])
async def test_a_reaped_supervisor_that_wakes_is_refused(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis, outcome: str
) -> None:
    """The zombie: refused while its task waits, while its successor runs it, and after the end."""
    zombie = await _running(store, w1)
    await w2.reap(w1)
    await w1.beat()

    async def refused() -> None:
        before = await everything(redis_client)
        assert await w1.finish(zombie, outcome, result=b'"zombie"', submitted=[submission()]) == "stale"
        assert await everything(redis_client) == before

    await refused()
    successor = await w2.claim_one()
    await refused()
    await w2.finish(successor, result=b'"successor"')
    await refused()
    assert await store.result(zombie.id) == (Status.SUCCEEDED, b'"successor"')


async def test_a_silent_supervisor_may_finish_until_it_is_reaped(store: Store, w1: Hand, clock: Clock) -> None:
    task = await _running(store, w1)
    clock.advance(DAY_MS)
    assert await w1.finish(task) == Status.SUCCEEDED


async def test_one_refused_item_does_not_stop_the_others(store: Store, w1: Hand) -> None:
    await submit(store, *(submission() for _ in range(3)))
    tasks = await w1.claim(sync=3)
    items = [Finish(id=task.id, epoch=task.epoch, outcome="succeeded", result=b"1") for task in tasks]
    items[1] = Finish(id=tasks[1].id, epoch=9, outcome="succeeded", result=b"1")

    assert await store.finish(0, w1.id, items) == ["succeeded", "stale", "succeeded"]
    assert (await read(store, tasks[1].id)).status is Status.RUNNING


async def test_one_token_twice_in_one_call_counts_once(store: Store, w1: Hand) -> None:
    task = await _running(store, w1)
    item = Finish(id=task.id, epoch=task.epoch, outcome="succeeded", result=b"1")
    assert await store.finish(0, w1.id, [item, item]) == ["succeeded", "done"]


async def test_submitted_tasks_are_accepted_with_the_success(store: Store, w1: Hand, redis_client: Redis) -> None:
    task = await _running(store, w1)
    now, later = submission("other"), submission("get", delay_ms=1000)
    await w1.finish(task, submitted=[now, later])

    assert (await read(store, now.id)).status is Status.QUEUED
    assert (await read(store, later.id)).status is Status.SCHEDULED
    assert await redis_client.llen(keys.wake(0, "default", "other")) == 1
    assert [each.id for each in await w1.claim(sync=9)] == [now.id]


@pytest.mark.parametrize("outcome", ["failed", "retry", "canceled"])
async def test_what_an_attempt_without_success_submitted_is_dropped(store: Store, w1: Hand, outcome: str) -> None:
    task = await _running(store, w1)
    child = submission("other")
    await w1.finish(task, outcome, submitted=[child])
    assert await store.read([child.id]) == [None]


async def test_what_had_been_canceled_but_succeeded_submits_all_the_same(store: Store, w1: Hand) -> None:
    task = await _running(store, w1)
    await store.cancel(task.id)
    child = submission("other")
    await w1.finish(task, submitted=[child])
    assert (await read(store, child.id)).status is Status.QUEUED


@pytest.mark.parametrize("text", ["é\u2028\U0001f600", "%s %d", "\\u0000", "x" * 70_000])
async def test_results_and_errors_come_back_as_they_were(store: Store, w1: Hand, text: str) -> None:
    task = await _running(store, w1)
    result = f'"{text}"'.encode()
    await w1.finish(task, result=result, error=result)
    assert await store.result(task.id) == (Status.SUCCEEDED, result)
    assert (await read(store, task.id)).error == result
    assert (await store.events(task.id))[-1].data.endswith(b'"error":' + result + b"}")


async def test_claims_and_ends_wake_those_who_watch_among_many(store: Store, w1: Hand, redis_client: Redis) -> None:
    ids = await submit(store, *(submission() for _ in range(4)))
    async with redis_client.pubsub() as pubsub:
        await pubsub.subscribe(*(keys.changes(0, task_id) for task_id in ids[1:3]))
        for _ in range(2):
            await pubsub.get_message(timeout=30)
        tasks = await w1.claim(sync=4)
        claims = [await pubsub.get_message(timeout=30) for _ in range(2)]
        ends = [Finish(id=task.id, epoch=task.epoch, outcome="succeeded", progress=b"{}") for task in tasks]
        await store.finish(0, "w1", ends)
        ended = [await pubsub.get_message(timeout=30) for _ in range(4)]
        assert await pubsub.get_message() is None
    told = [(message["channel"].decode(), message["data"]) for message in claims + ended if message]
    first, second = (keys.changes(0, task_id) for task_id in ids[1:3])
    assert told[:2] == [(first, b"2"), (second, b"2")]
    assert told[2:] == [(first, b"3"), (first, b"4"), (second, b"3"), (second, b"4")]

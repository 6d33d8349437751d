"""Dead letters: the history of their attempts, redriving many, at a rate, and deleting many."""

from collections import Counter

import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import NotDead, QueueFull, Refused, TaskNotFound
from taskgate.contract.models import Limits, PastAttempt, QueueLimits
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock, dead_letters
from tests.contract.conftest import LIMITS, Hand, read, submission, submit
from tests.contract.invariants import everything

ERROR = b'{"kind":"exception","message":"no %d"}'
EFFORT = b'{"rss_peak_bytes":%d}'


async def _fail(store: Store, hand: Hand, clock: Clock, *, attempts: int = 1, number: int = 0) -> str:
    """One more attempt that fails, 10 ms long, 100 ms after the last one; its status then."""
    clock.advance(100)
    await store.promote(0)
    task = await hand.claim_one()
    clock.advance(10)
    return await hand.finish(
        task, "retry", error=ERROR % number, effort=EFFORT % number, max_attempts=attempts, retry_delay_ms=50
    )


async def _dead(store: Store, hand: Hand, count: int = 1, **more: object) -> list[str]:
    ids = await submit(store, *(submission(**more) for _ in range(count)))  # type: ignore[arg-type]
    for task in await hand.claim(count):
        await hand.finish(task, "failed", error=ERROR % 0)
    return ids


async def _past(store: Store, task_id: str) -> list[tuple[int, int]]:
    """Attempt and number of the error of each."""
    history = await store.history(task_id)
    return [(past.attempt, int(bytes(past.error).split(b"no ")[1][:-2])) for past in history.attempts]


async def test_each_unsuccessful_attempt_is_remembered_but_the_last_which_the_record_shows(
    store: Store, w1: Hand, clock: Clock
) -> None:
    [task_id] = await submit(store)
    begin = clock.now
    assert await _fail(store, w1, clock, attempts=3, number=1) == "retrying"
    assert await _fail(store, w1, clock, attempts=3, number=2) == "retrying"
    assert await _fail(store, w1, clock, attempts=3, number=3) == "failed"

    history = await store.history(task_id)
    record = await read(store, task_id)
    assert history.attempts == [
        PastAttempt(
            attempt=number,
            started_ms=begin + 110 * number - 10,
            finished_ms=begin + 110 * number,
            worker="w1",
            error=msgspec.Raw(ERROR % number),
            effort=msgspec.Raw(EFFORT % number),
        )
        for number in (1, 2)
    ]
    assert (history.lost, history.redriven_ms, history.record) == (0, 0, record)
    assert (record.attempt, record.worker, record.error, record.started_ms) == (3, "w1", ERROR % 3, begin + 320)


async def test_the_history_goes_on_over_redrives_which_stand_in_it(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store)
    for number in (1, 2):
        await _fail(store, w1, clock, attempts=2, number=number)
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    redriven_ms = clock.now
    for number in (3, 4):
        await _fail(store, w1, clock, attempts=2, number=number)
    assert await _past(store, task_id) == [(1, 1), (2, 2), (1, 3)]
    history = await store.history(task_id)
    assert [past.redriven_ms for past in history.attempts] == [0, 0, redriven_ms]
    assert history.redriven_ms == redriven_ms


async def test_an_attempt_that_died_with_its_machine_is_remembered(store: Store, w1: Hand, w2: Hand) -> None:
    [task_id] = await submit(store, submission(max_attempts=2))
    await w1.claim_one()
    await w2.reap(w1)
    [past] = (await store.history(task_id)).attempts
    assert (past.attempt, past.worker, bytes(past.effort)) == (1, "w1", b"null")
    assert b'"lost"' in bytes(past.error)


async def test_what_ended_without_an_attempt_adds_none_when_it_is_redriven(store: Store) -> None:
    hand = Hand(store, "w1")
    await hand.beat(served=[])
    [task_id] = await submit(store)
    await store.fail_unserved(0, "w1", queue="default", task_type="echo", after_s=1)
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    assert (await store.history(task_id)).attempts == []
    [task] = await hand.claim()
    assert task.queue_wait_ms is None, "it was no waiting in the queue"


async def test_attempts_that_are_handed_back_are_none(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    await w1.hand_back(await w1.claim_one(), reason="drain")
    assert (await store.history(task_id)).attempts == []


async def test_the_oldest_attempts_go_first_and_are_counted(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store)
    for number in range(25):
        await _fail(store, w1, clock, attempts=100, number=number)
    assert await _past(store, task_id) == [(number + 1, number) for number in range(5, 25)]
    assert (await store.history(task_id)).lost == 5


async def test_long_errors_push_older_attempts_out_but_never_the_newest(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store)
    for number, size in enumerate((9_000, 9_000, 9_000, 9_000, 50_000)):
        clock.advance(1)
        error = msgspec.json.encode({"kind": "exception", "message": "x" * size})
        await w1.finish(await w1.claim_one(), "retry", error=error, max_attempts=9)
        history = await store.history(task_id)
        assert history.attempts[-1].attempt == number + 1
        assert len(history.attempts) + history.lost == number + 1
    assert history.lost == 4


@pytest.mark.parametrize("outcome", ["succeeded", "canceled", "expired"])
async def test_with_another_end_the_history_goes(
    store: Store, w1: Hand, clock: Clock, redis_client: Redis, outcome: str
) -> None:
    [task_id] = await submit(store, submission(deadline_ms=1000))
    await _fail(store, w1, clock, attempts=9)
    clock.advance(50)
    await store.promote(0)
    if outcome == "succeeded":
        await w1.finish(await w1.claim_one())
    else:
        await store.cancel(task_id)
    assert (await store.history(task_id)).attempts == []
    assert not await redis_client.exists(keys.attempts(0, task_id))


async def test_a_task_that_succeeds_at_once_costs_nothing_for_it(store: Store, w1: Hand, redis_client: Redis) -> None:
    await submit(store, *(submission() for _ in range(10)))
    tasks = await w1.claim(10)
    await redis_client.config_resetstat()
    for task in tasks:
        await w1.finish(task)
    calls = await redis_client.info("commandstats")
    assert not {"cmdstat_rpush", "cmdstat_llen", "cmdstat_unlink"} & calls.keys()
    assert calls["cmdstat_hmget"]["calls"] == 10, "what held_by reads"


async def test_many_are_redriven_in_one_call_each_with_its_answer(
    store: Store, w1: Hand, redis_client: Redis, clock: Clock
) -> None:
    dead = await _dead(store, w1, 3)
    strange = await _dead(store, w1, tenant="b")
    [queued] = await submit(store)
    gone = submission().id
    asked = [*dead, *strange, queued, gone]

    async def redrive() -> Counter[object]:
        found = await store.redrive_letters(asked, request_id="r", limits=LIMITS, tenant="default")
        return Counter(each and type(each) for each in found)

    assert await redrive() == {None: 3, TaskNotFound: 2, NotDead: 1}
    assert {(await read(store, each)).status for each in dead} == {Status.QUEUED}
    before = await everything(redis_client)
    assert await redrive() == {None: 3, TaskNotFound: 2, NotDead: 1}, "a repeat answers the same"
    assert await everything(redis_client) == before


async def test_what_has_failed_again_since_is_left_out(store: Store, w1: Hand, clock: Clock) -> None:
    early, late = await _dead(store, w1, 2)
    before_ms = clock.now + 1
    clock.advance(1)
    await store.redrive(late, request_id="first", limits=LIMITS)
    await w1.finish(await w1.claim_one(), "failed")
    first, second = await store.redrive_letters([early, late], request_id="second", limits=LIMITS, before_ms=before_ms)
    assert (first, type(second)) == (None, NotDead)


async def test_at_a_rate_each_starts_when_its_turn_has_come(store: Store, w1: Hand, clock: Clock) -> None:
    dead = await _dead(store, w1, 5)
    clock.advance(1000)
    await store.redrive_letters(dead, request_id="r", limits=LIMITS, first_ms=clock.now - 100, rate_per_s=4)
    records = [await read(store, each) for each in dead]
    assert [record.status for record in records] == ["queued", *["scheduled"] * 4]
    assert [record.due_ms - clock.now for record in records[1:]] == [150, 400, 650, 900]
    for wanted in (1, 2, 3):
        assert len(await w1.claim(5)) == 1, wanted
        clock.advance(250)
        await store.promote(0)


async def test_letters_without_room_stay_and_take_one_place_in_the_row_together(
    store: Store, w1: Hand, clock: Clock
) -> None:
    dead = await _dead(store, w1, 6)
    limits = Limits(queue=QueueLimits(tasks=2))
    await w1.claim()  # so that something was measured
    clock.advance(5_000)
    found = await store.redrive_letters(dead, request_id="r", limits=limits)
    refused = [each for each in found if each is not None]
    assert found[:2] == [None, None]
    assert [type(each) for each in refused] == [QueueFull] * 4
    waits = {each.retry_after_s for each in refused if isinstance(each, Refused)}
    assert len(waits) == 1
    assert set(await dead_letters(store)) == set(dead[2:])


async def test_a_large_letter_without_room_does_not_keep_smaller_ones_out(store: Store, w1: Hand) -> None:
    [large] = await submit(store, submission(payload=b'"' + b"x" * 20_000 + b'"'))
    await w1.finish(await w1.claim_one(), "failed")
    [small] = await _dead(store, w1)
    first, second = await store.redrive_letters(
        [large, small], request_id="r", limits=Limits(queue=QueueLimits(bytes=10_000))
    )
    assert isinstance(first, QueueFull)
    assert second is None


async def test_each_queue_has_its_own_limit(store: Store, w1: Hand) -> None:
    dead = await _dead(store, w1, 2)
    limits = Limits(queue=QueueLimits(tasks=100), queues={"default": QueueLimits(tasks=1)})
    first, second = await store.redrive_letters(dead, request_id="r", limits=limits)
    assert (first, type(second)) == (None, QueueFull)


async def test_many_are_purged_in_one_call_and_only_dead_letters(
    store: Store, w1: Hand, clock: Clock, redis_client: Redis
) -> None:
    dead = await _dead(store, w1, 3)
    [strange] = await _dead(store, w1, tenant="b")
    [done] = await submit(store)
    await w1.finish(await w1.claim_one())
    clock.advance(1)
    [late] = await _dead(store, w1)
    [queued] = await submit(store)
    asked = [*dead, strange, late, done, queued]
    assert await store.purge_letters(asked, before_ms=clock.now, tenant="default") == 3
    kept = [task_id for task_id, record in zip(asked, await store.read(asked), strict=True) if record]
    assert kept == [strange, late, done, queued]
    before = await everything(redis_client)
    assert await store.purge_letters(asked, before_ms=clock.now, tenant="default") == 0
    assert await everything(redis_client) == before

"""trim by bytes: what finished tasks keep stays below the limit, the oldest goes first, dead letters stay whole."""

import asyncio

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import ResultGone
from taskgate.contract.models import Finish
from taskgate.contract.script import BATCH
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import LIMITS, Hand, read, submission, submit

LIGHT = 2048
HEAVY = b'"%s"' % (b"x" * 4094)
"""A payload or result of 4 KiB."""
LIMIT = 5 * (LIGHT + 4096)


@pytest.fixture
def store(redis_client: Redis, clock: Clock) -> Store:
    """The store, whose finished tasks may keep five of 4 KiB."""
    return Store(redis_client, clock=clock, retention_bytes=LIMIT)


async def _finished(store: Store, hand: Hand, clock: Clock, count: int, outcome: str = "succeeded") -> list[str]:
    """Ids of tasks that ended one after the other, oldest first; a success has a result of 4 KiB."""
    ids = []
    for _ in range(count):
        clock.advance(1)
        payload = HEAVY if outcome == "failed" else b"{}"
        ids += await submit(store, submission(payload=payload, max_attempts=1))
        result = HEAVY if outcome == "succeeded" else b""
        await hand.finish(await hand.claim_one(), outcome, result=result, max_attempts=1)
    return ids


async def _kept(store: Store) -> float:
    return (await store.usage(0)).get("kept:bytes", 0)


async def test_results_of_the_oldest_go_first_and_the_tasks_stay_known(store: Store, w1: Hand, clock: Clock) -> None:
    ids = await _finished(store, w1, clock, 8)
    assert await _kept(store) <= LIMIT
    gone = [task_id for task_id in ids if not (await read(store, task_id)).has_result]
    assert gone == ids[: len(gone)]
    assert 3 <= len(gone) <= 5
    assert (await read(store, ids[0])).status is Status.SUCCEEDED
    with pytest.raises(ResultGone):
        await store.result(ids[0])
    assert await store.result(ids[-1]) == (Status.SUCCEEDED, HEAVY)
    assert await store.events(ids[0])


async def test_a_reader_who_knew_the_result_sees_a_new_version(store: Store, w1: Hand, clock: Clock) -> None:
    [first] = await _finished(store, w1, clock, 1)
    before = (await read(store, first)).version
    await _finished(store, w1, clock, 5)
    assert (await read(store, first)).version == before + 1


async def test_then_whole_tasks_go_the_oldest_first(store: Store, w1: Hand, clock: Clock) -> None:
    """When nothing heavy is left, records themselves are above the limit."""
    ids = await _finished(store, w1, clock, 20, "canceled")
    found = await store.read(ids)
    left = [record.id for record in found if record is not None]
    assert left == ids[-len(left) :]
    assert len(left) == LIMIT // (LIGHT + 2)
    assert await _kept(store) <= LIMIT


async def test_dead_letters_stay_whole_while_anything_else_can_go(store: Store, w1: Hand, clock: Clock) -> None:
    dead = await _finished(store, w1, clock, 3, "failed")
    ids = await _finished(store, w1, clock, 6)
    assert [(await read(store, task_id)).status for task_id in dead] == [Status.FAILED] * 3
    assert not (await read(store, ids[0])).has_result
    await store.redrive(dead[0], request_id="r", limits=LIMITS)
    again = await w1.claim_one()
    assert (again.id, again.payload) == (dead[0], HEAVY)


async def test_small_results_cost_no_second_entry(store: Store, w1: Hand, redis_client: Redis) -> None:
    await submit(store)
    await w1.finish(await w1.claim_one(), result=b"1" * 1000)
    assert not await redis_client.exists(f"{keys.prefix(0)}heavy")


async def test_a_call_takes_a_bounded_number(redis_client: Redis, clock: Clock, w1: Hand) -> None:
    """A limit that was lowered is reached step by step."""
    generous = Store(redis_client, clock=clock)
    for _ in range(2):
        await submit(generous, *(submission() for _ in range(BATCH)))
        tasks = await Hand(generous, "w1").claim(sync=BATCH)
        ends = [Finish(id=each.id, epoch=1, outcome="succeeded", result=HEAVY) for each in tasks]
        await generous.finish(0, "w1", ends)
    frugal = Store(redis_client, clock=clock, retention_bytes=10 * LIGHT)
    taken = [await frugal.trim(0) for _ in range(5)]
    assert taken == [BATCH, BATCH, BATCH, BATCH - 10, 0], "all are lightened, then all but ten deleted"


async def test_a_record_that_expired_by_itself_is_still_counted_out(
    store: Store, w1: Hand, clock: Clock, redis_client: Redis
) -> None:
    """Nobody trimmed for a day after the purge time: the TTL did it."""
    [old] = await _finished(store, w1, clock, 1)
    await redis_client.delete(keys.task(0, old), keys.events(0, old))
    await _finished(store, w1, clock, 5)
    assert await _kept(store) <= LIMIT
    assert await redis_client.exists(keys.task(0, old)) == 0
    clock.advance(10**9)
    await store.trim(0)
    assert await _kept(store) == 0


async def test_two_who_trim_at_once_take_each_task_once(store: Store, w1: Hand, clock: Clock) -> None:
    await _finished(store, w1, clock, 5)
    clock.advance(10**9)
    assert sum(await asyncio.gather(store.trim(0), store.trim(0))) == 5
    assert await _kept(store) == 0

"""report: captured output, in one order with the events, capped, and ended with its task."""

import itertools

from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import Claimed, Event
from taskgate.contract.store import Store
from tests.contract.conftest import LIMITS, Hand, submit

LINE = b'{"text":"x"}'


def _place(event: Event) -> tuple[int, ...]:
    return tuple(int(part) for part in event.id.split("-"))


async def _all(store: Store, task_id: str) -> list[Event]:
    entries, _ = await store.output(task_id, count=2000)
    return entries


async def test_output_and_events_stand_in_the_order_in_which_they_were_written(store: Store, w1: Hand) -> None:
    """Many in one millisecond, with a clock that stands still."""
    [task_id] = await submit(store)
    task = await w1.claim_one()
    for number in range(1, 41):
        more = (
            {"logs": [(b'{"n":%d}' % number, 1)] * 2} if number % 3 else {"events": [("custom", b'{"n":%d}' % number)]}
        )
        await w1.report(task, number, **more)
    await w1.finish(task)

    events, logs = await store.events(task_id), await _all(store, task_id)
    told = sorted([*events, *logs], key=_place)
    assert len({event.id for event in told}) == len(told)
    wanted = [n for n in range(1, 41) for _ in range(2 if n % 3 else 1)]
    assert [int(event.data[5:-1]) for event in told if event.name != "status"] == wanted
    assert told[0] is events[0]
    assert told[-1] is events[-1]


async def test_output_of_a_redriven_task_goes_on_behind_all_that_was_told(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    await w1.report(task, logs=[(LINE, 1)])
    await w1.finish(task, "failed")
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    again = await w1.claim_one()
    before = (await store.events(task_id))[-1]
    await w1.report(again, logs=[(LINE, 1)])
    assert _place((await _all(store, task_id))[-1]) > _place(before)


async def test_the_newest_output_is_kept_and_the_rest_is_counted(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    for number in range(1, 21):
        await w1.report(task, number, logs=[(b'{"n":%d}' % number, 4096)] * 8, logs_lost=1)
    entries, lost = await store.output(task_id, count=2000)
    assert (len(entries), lost) == (64, 20 + (160 - 64) * 4096)
    assert [int(entry.data[5:-1]) for entry in entries] == [n for n in range(13, 21) for _ in range(8)]


async def test_short_lines_are_bounded_by_their_number(store: Store, w1: Hand, redis_client: Redis) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    for number in range(1, 14):
        await w1.report(task, number, logs=[(LINE, 3)] * 100)
    _, lost = await store.output(task_id)
    assert (await redis_client.xlen(keys.logs(0, task_id)), lost) == (1000, 900)


async def test_output_is_read_on_from_where_one_was(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    await w1.report(task, logs=[(b'{"n":%d}' % n, 1) for n in range(5)])
    first, _ = await store.output(task_id, count=2)
    rest, _ = await store.output(task_id, after=first[-1].id)
    assert [entry.data for entry in itertools.chain(first, rest)] == [b'{"n":%d}' % n for n in range(5)]


async def _ended(store: Store, w1: Hand) -> Claimed:
    await submit(store)
    task = await w1.claim_one()
    await w1.report(task, logs=[(LINE, 500)] * 4)
    await w1.finish(task)
    return task


async def test_output_ends_with_its_task(store: Store, w1: Hand, redis_client: Redis) -> None:
    """The time to live is the belt; what trims deletes it."""
    task = await _ended(store, w1)
    assert await redis_client.pttl(keys.logs(0, task.id)) > 0
    assert await redis_client.hget(keys.usage(0), "kept:bytes") == str(2048 + 2000 + 6 + len(task.payload)).encode()
    store._retention_bytes = 1
    await store.trim(0)
    assert not await redis_client.keys("*:logs")


async def test_a_finished_task_gives_up_its_output_together_with_its_result(
    store: Store, w1: Hand, redis_client: Redis
) -> None:
    task = await _ended(store, w1)
    store._retention_bytes = 2048
    await store.trim(0)
    assert await store.output(task.id) == ([], 2000)
    assert not await redis_client.exists(keys.logs(0, task.id))
    last = (await store.events(task.id))[-1].id
    assert await store.kept_events([task.id]) == [(last, last)], "some of its events are gone"


async def test_output_that_is_sent_again_is_written_once(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    assert await w1.report(task, logs=[(LINE, 1)], logs_lost=7) == "ok"
    assert await w1.report(task, logs=[(LINE, 1)], logs_lost=7) == "done"
    assert (len(await _all(store, task_id)), (await store.output(task_id))[1]) == (1, 7)

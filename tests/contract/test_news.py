"""news: what many streams read together, and what is known of the part that is kept."""

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from taskgate.contract import keys
from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Claimed, EventPage
from taskgate.contract.store import Store
from tests.contract.conftest import Hand, submit


async def told(w1: Hand, task: Claimed, *numbers: int) -> None:
    """One report for each, with an event of its own."""
    for number in numbers:
        await w1.report(task, number, events=[("custom", b'{"n":%d}' % number)])


async def test_each_is_told_what_follows_its_own_place(store: Store, w1: Hand) -> None:
    """Other tasks, other places of one task, tasks that nobody knows: one call."""
    await submit(store), await submit(store)
    one, other = await w1.claim_one(), await w1.claim_one()
    await told(w1, one, 1, 2, 3)
    await told(w1, other, 1)
    whole = [await store.events(task.id) for task in (one, other)]
    assert [len(events) for events in whole] == [4, 2]

    asked = [(one.id, "0-0"), (other.id, "0-0"), (one.id, whole[0][1].id), (new_task_id(), "0-0"), (one.id, "9-9")]
    now_ms, pages = await store.news(asked)
    assert abs(now_ms - await store.now_ms()) < 60_000
    assert pages == [
        EventPage(whole[0], whole=True),
        EventPage(whole[1], whole=True),
        EventPage(whole[0][2:], whole=True),
        EventPage([], whole=True),
        EventPage(whole[0], whole=True),
    ]
    assert [page.events for page in (await store.news([(one.id, whole[0][-1].id)]))[1]] == [[]]


@pytest.mark.parametrize(("count", "whole"), [(1, False), (3, False), (4, False), (5, True)])
async def test_a_page_says_when_more_may_follow(store: Store, w1: Hand, count: int, whole: bool) -> None:
    await submit(store)
    task = await w1.claim_one()
    await told(w1, task, 1, 2, 3)
    _, [page] = await store.news([(task.id, "0-0")], count=count)
    assert (len(page.events), page.whole) == (min(count, 4), whole)


async def test_what_was_written_before_the_time_told_is_in_the_page(store: Store, w1: Hand) -> None:
    """A stream of several tasks relies on it: what it has not been told yet is not older than that."""
    await submit(store)
    task = await w1.claim_one()
    await told(w1, task, 1)
    now_ms, [page] = await store.news([(task.id, "0-0")])
    assert all(int(event.id.split("-")[0]) <= now_ms for event in page.events)
    await told(w1, task, 2)
    assert int((await store.events(task.id))[-1].id.split("-")[0]) >= now_ms


async def test_it_is_known_whether_events_were_dropped(store: Store, w1: Hand, redis_client: Redis) -> None:
    [task_id] = await submit(store)
    assert await store.kept_events([task_id]) == [(None, None)]
    task = await w1.claim_one()
    await told(w1, task, 1, 2)
    last = (await store.events(task_id))[-1].id
    assert await store.kept_events([new_task_id(), task_id]) == [(None, None), (last, None)]
    await redis_client.xtrim(keys.events(0, task_id), maxlen=1, approximate=False)
    assert await store.kept_events([task_id]) == [(last, last)]


async def test_what_is_kept_of_no_stream_is_not_taken_for_nothing(store: Store, redis_client: Redis) -> None:
    task_id = new_task_id()
    await redis_client.set(keys.logs(0, task_id), "no stream")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await store.kept_events([task_id])
    await redis_client.delete(keys.logs(0, task_id))

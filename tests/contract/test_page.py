"""page: a tenant's tasks, newest first, a bounded number of looks at a time."""

from typing import Any

import pytest
from redis.asyncio import Redis

from taskgate.contract.models import Mark
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import Hand, submission, submit


async def _all(store: Store, tenant: str, limit: int, **wanted: Any) -> list[str]:
    found: list[str] = []
    mark: Mark | None = Mark()
    while mark is not None:
        page = await store.page(0, tenant, start=mark, limit=limit, **wanted)
        assert page.scanned <= limit
        found += page.ids
        assert len(found) == len(set(found)), "one was shown twice"
        mark = page.last
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_of_any_size_show_each_task_once_in_order(store: Store, clock: Clock, limit: int) -> None:
    """Also where many are of the same millisecond."""
    ids = []
    for size in (1, 7, 3, 1):
        ids += await submit(store, *(submission(tenant="a") for _ in range(size)))
        clock.advance(1)
    await submit(store, submission(tenant="b"))
    assert await _all(store, "a", limit) == ids[::-1]


async def test_what_is_deleted_between_two_pages_moves_nothing(store: Store) -> None:
    ids = await submit(store, *(submission(tenant="a") for _ in range(5)))
    page = await store.page(0, "a", start=Mark(), limit=2)
    assert page.last is not None
    for task_id in page.ids:
        await store.cancel(task_id)
        await store.delete(task_id)
    rest = await store.page(0, "a", start=page.last, limit=10)
    assert page.ids + rest.ids == ids[::-1]
    assert rest.last is None


async def test_times_bound_it(store: Store, clock: Clock) -> None:
    """From `after_ms` on, and before the mark."""
    ids = []
    for _ in range(5):
        ids += await submit(store)
        clock.advance(10)
    start = clock.now - 50
    page = await store.page(0, "default", start=Mark(start + 30), till_ms=start + 10, limit=10)
    assert page.ids == [ids[2], ids[1]]
    assert page.last is None, "older ones are not wanted"


async def test_status_type_and_queue_are_looked_at_and_nothing_else(store: Store, w1: Hand) -> None:
    running, queued = await submit(store, submission(), submission())
    other, elsewhere = await submit(store, submission("other"), submission(queue="second"))
    assert (await w1.claim_one()).id == running
    assert await _all(store, "default", 3, statuses=[Status.RUNNING]) == [running]
    assert await _all(store, "default", 3, statuses=[Status.QUEUED, Status.RUNNING], task_type="echo") == [
        elsewhere, queued, running,
    ]  # fmt: skip
    assert await _all(store, "default", 3, task_type="other") == [other]
    assert await _all(store, "default", 1, queue="second") == [elsewhere]


async def test_a_type_is_found_also_where_its_task_must_run_alone(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store, submission("get"))
    [task] = await w1.claim(0, free_async=1)
    await w1.hand_back(task, reason="suspect")
    assert await _all(store, "default", 3, task_type="get") == [task_id]


async def test_the_list_of_one_with_20_000_tasks_is_cheap(store: Store, redis_client: Redis) -> None:
    await redis_client.zadd("tg:{0}:all:big", {f"{n:08}": n // 1000 for n in range(20_000)})
    await redis_client.config_resetstat()
    page = await store.page(0, "big", start=Mark(10, "00010500"), limit=100)
    assert page.ids == [f"{n:08}" for n in range(10_499, 10_399, -1)]
    calls = await redis_client.info("commandstats")
    assert sum(stat["calls"] for name, stat in calls.items() if "zrev" in name or "zcount" in name) <= 20
    await redis_client.delete("tg:{0}:all:big")


async def _dead(store: Store, hand: Hand, name: str = "echo", kind: str = "exception", **more: object) -> str:
    [task_id] = await submit(store, submission(name, **more))  # type: ignore[arg-type]
    task = await hand.claim_one()
    await hand.finish(task, "failed", error=b'{"kind":"%s","message":"\\"kind\\":\\"lost\\""}' % kind.encode())
    return task_id


@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
async def test_dead_letters_are_paged_by_their_end_from_either_side(
    store: Store, w1: Hand, clock: Clock, limit: int, oldest_first: bool
) -> None:
    """Some of one millisecond: among these by id."""
    early, late = await submit(store, submission(tenant="a"), submission(tenant="a"))
    for outcome in ("retry", "failed"):  # so that the one made first ends last
        await w1.finish(await w1.claim_one(), outcome, retry_delay_ms=50)
    made = [late]
    for size in (1, 3, 4):
        clock.advance(1)
        made += sorted([await _dead(store, w1, tenant="a") for _ in range(size)])
    await _dead(store, w1, tenant="b")
    clock.advance(100)
    await store.promote(0)
    await w1.finish(await w1.claim_one(), "failed")
    made.append(early)
    found = await _all(store, "a", limit, letters=True, oldest_first=oldest_first)
    assert found == (made if oldest_first else made[::-1])


async def test_from_the_oldest_on_the_end_is_exclusive(store: Store, w1: Hand, clock: Clock) -> None:
    made = []
    for _ in range(4):
        made.append(await _dead(store, w1))
        clock.advance(10)
    page = await store.page(
        0, "default", start=Mark(clock.now - 30), till_ms=clock.now - 10, letters=True, oldest_first=True, limit=10
    )
    assert page.ids == made[1:3]
    assert page.last is None


async def test_dead_letters_are_found_by_type_queue_and_kind_of_error(store: Store, w1: Hand) -> None:
    timeout = await _dead(store, w1, "other", "timeout")
    crash = await _dead(store, w1, "echo", "crash")
    lost = await submit(store, submission(max_attempts=1))
    await w1.claim_one()
    other = Hand(store, "w2")
    await other.beat()
    await other.reap(w1)
    assert await _all(store, "default", 1, letters=True, kind="timeout") == [timeout]
    assert await _all(store, "default", 1, letters=True, kind="crash", task_type="echo") == [crash]
    assert await _all(store, "default", 1, letters=True, kind="crash", task_type="other") == []
    assert await _all(store, "default", 3, letters=True, kind="lost") == lost
    assert await _all(store, "default", 3, letters=True, queue="second") == []

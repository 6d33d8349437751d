"""submit: (nothing) -> queued | scheduled, once, within the limits."""

import asyncio
import itertools

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import IdempotencyConflict, QueueFull, StoreUnavailable
from taskgate.contract.models import Accepted, Limits, QueueLimits
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from taskgate.footprint import TASK_BYTES
from tests.conftest import Clock
from tests.contract.conftest import LIMITS, Hand, read, submission, submit


async def test_an_accepted_task_is_queued_with_its_bytes_as_sent(store: Store, w1: Hand) -> None:
    payload = b'{ "b":1.0, "a" : "\xc3\xa9\\u00e9" }'
    [task_id] = await submit(store, submission(payload=payload, priority=7))

    record = await read(store, task_id)
    assert (record.status, record.version, record.attempt, record.position) == (Status.QUEUED, 1, 0, 0)
    claimed = await w1.claim_one()
    assert claimed.payload == payload
    assert claimed.spec.priority == 7


async def test_a_task_counts_what_doctor_reckons_with(store: Store, redis_client: Redis) -> None:
    await submit(store, submission(payload=b"[]"))
    assert await redis_client.hget(keys.usage(0), "bytes:queue:default") == str(TASK_BYTES + 2).encode()


async def test_the_same_submission_again_changes_nothing(store: Store) -> None:
    item = submission(key="k")
    await submit(store, item)
    before = await store.usage(0)

    assert await store.submit([item], LIMITS) == [Accepted(item.id, replayed=False)]
    assert await store.usage(0) == before


async def test_a_repeat_after_the_task_has_moved_on_changes_nothing(store: Store, w1: Hand) -> None:
    item = submission()
    await submit(store, item)
    task = await w1.claim_one()

    assert await store.submit([item], LIMITS) == [Accepted(item.id, replayed=False)]
    assert (await read(store, task.id)).status is Status.RUNNING


async def test_an_idempotency_key_leads_to_the_first_task(store: Store) -> None:
    first, second = submission(key="k", body="x"), submission(key="k", body="x")
    await submit(store, first)

    assert await store.submit([second], LIMITS) == [Accepted(first.id, replayed=True)]
    assert await store.read([second.id]) == [None]


async def test_a_key_with_another_body_is_a_conflict(store: Store) -> None:
    first = submission(key="k", body="x")
    await submit(store, first)

    [outcome] = await store.submit([submission(key="k", body="y")], LIMITS)
    assert isinstance(outcome, IdempotencyConflict)
    assert (await read(store, first.id)).version == 1


async def test_keys_of_tenants_are_independent(store: Store) -> None:
    mine, yours = submission(key="k", tenant="a"), submission(key="k", tenant="b")
    assert await submit(store, mine, yours) == [mine.id, yours.id]


async def test_two_of_one_key_in_one_group_are_one_task(store: Store) -> None:
    first, second = submission(key="k"), submission(key="k")
    assert await submit(store, first, second) == [first.id, first.id]


async def test_a_replay_is_answered_when_the_queue_is_full(store: Store) -> None:
    first = submission(key="k")
    await submit(store, first, limits=Limits(queue=QueueLimits(tasks=1)))

    [replay] = await store.submit([submission(key="k")], Limits(queue=QueueLimits(tasks=1)))
    assert replay == Accepted(first.id, replayed=True)


async def test_a_full_queue_refuses_and_keeps_nothing(store: Store) -> None:
    await submit(store, submission(), submission())
    over = submission()

    [outcome] = await store.submit([over], Limits(queue=QueueLimits(tasks=2)))
    assert isinstance(outcome, QueueFull)
    assert (outcome.limit, outcome.queue) == ("queue-tasks", "default")
    assert await store.read([over.id]) == [None]


async def test_the_limit_counts_bytes_with_the_overhead_of_each_task(store: Store) -> None:
    limits = Limits(queue=QueueLimits(bytes=2 * (1000 + 2048)))
    await submit(store, submission(payload=b"x" * 1000), submission(payload=b"x" * 1000), limits=limits)

    [outcome] = await store.submit([submission(payload=b"")], limits)
    assert isinstance(outcome, QueueFull)
    assert outcome.limit == "queue-bytes"


@pytest.mark.parametrize(
    "limits", [Limits(queue=QueueLimits(tasks=3)), Limits(queue=QueueLimits(bytes=3 * (2 + 2048)))]
)
async def test_the_limit_is_exact_within_one_group(store: Store, limits: Limits) -> None:
    outcomes = await store.submit([submission() for _ in range(5)], limits)
    assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True] * 3 + [False] * 2


async def test_what_runs_does_not_count(store: Store, w1: Hand) -> None:
    await submit(store)
    await w1.claim_one()
    await submit(store, submission(), limits=Limits(queue=QueueLimits(tasks=1)))


async def test_another_queue_has_its_own_room(store: Store) -> None:
    await submit(store, submission(), limits=Limits(queue=QueueLimits(tasks=1)))
    await submit(store, submission(queue="b"), limits=Limits(queue=QueueLimits(tasks=1)))


async def test_the_limit_is_exact_under_many_at_once(redis_url: str) -> None:
    clients = [Redis.from_url(redis_url) for _ in range(20)]
    stores = [Store(client) for client in clients]
    tries = [store.submit([submission()], Limits(queue=QueueLimits(tasks=37))) for store in stores for _ in range(5)]
    outcomes = [outcome for group in await asyncio.gather(*tries) for outcome in group]
    assert sum(isinstance(outcome, Accepted) for outcome in outcomes) == 37
    for client in clients:
        await client.aclose()


async def test_refused_callers_are_told_to_come_one_by_one_at_the_drain_rate(
    store: Store, w1: Hand, clock: Clock
) -> None:
    await submit(store, *(submission() for _ in range(60)))
    for _ in range(3):  # 20 tasks a second leave the queue
        clock.advance(1000)
        await w1.claim(sync=20)
    limits = Limits(queue=QueueLimits(tasks=10))
    await submit(store, *(submission() for _ in range(10)), limits=limits)

    waits = []
    for _ in range(40):
        [outcome] = await store.submit([submission()], limits)
        assert isinstance(outcome, QueueFull)
        waits.append(outcome.retry_after_s)
    steps = [after - before for before, after in itertools.pairwise(waits)]
    assert all(0.04 < step < 0.06 for step in steps), steps


async def test_a_queue_that_stands_tells_longer_and_longer_waits(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, *(submission() for _ in range(40)))
    clock.advance(1000)
    await w1.claim(sync=20)
    limits = Limits(queue=QueueLimits(tasks=20))
    [soon] = await store.submit([submission()], limits)
    clock.advance(30_000)
    [late] = await store.submit([submission()], limits)
    clock.advance(600_000)
    [capped] = await store.submit([submission()], limits)
    assert isinstance(soon, QueueFull)
    assert isinstance(late, QueueFull)
    assert isinstance(capped, QueueFull)
    assert soon.retry_after_s < 1 < 20 < late.retry_after_s <= 31
    assert capped.retry_after_s == 60


async def test_equal_scores_go_by_id(store: Store, w1: Hand) -> None:
    ids = await submit(store, *(submission() for _ in range(20)))
    assert [task.id for task in await w1.claim(sync=20)] == ids == sorted(ids)


async def test_nothing_is_accepted_at_maxmemory(store: Store, redis_client: Redis) -> None:
    await redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable):
            await store.submit([submission()], LIMITS)
    finally:
        await redis_client.config_set("maxmemory", 0)
    assert await redis_client.dbsize() == 0


async def test_a_flushed_script_cache_is_not_noticed(store: Store, redis_client: Redis) -> None:
    await submit(store)
    await redis_client.script_flush()
    await submit(store)


async def test_a_submission_tells_idle_supervisors_once(store: Store, redis_client: Redis) -> None:
    await submit(store, submission(), submission(), submission("other"))
    await submit(store)
    assert await redis_client.llen(keys.wake(0, "default", "echo")) == 1
    assert await redis_client.llen(keys.wake(0, "default", "other")) == 1

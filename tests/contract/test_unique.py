"""Unique keys: one live task for each key of a tenant, free as soon as that task has ended in any way."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import QueueFull, RateLimited, Refused, UniqueConflict
from taskgate.contract.ids import key_hash
from taskgate.contract.models import Accepted, Limits, QueueLimits, Submission, TenantLimits
from taskgate.contract.states import Status
from taskgate.contract.store import RETENTION_MS, Store
from tests.conftest import Clock
from tests.contract.conftest import LIMITS, Hand, read, submission, submit
from tests.contract.invariants import everything

KEY = f"{keys.prefix(0)}unique:default:{key_hash('u')}"


def unique(on_conflict: str = "return", **more: Any) -> Submission:
    return submission(**{"unique_key": "u", "on_conflict": on_conflict, **more})


async def test_while_one_is_live_the_answer_is_that_one(store: Store, w1: Hand) -> None:
    [first] = await submit(store, unique())
    assert await store.submit([unique()], LIMITS) == [Accepted(first, replayed=False, existing=True)]
    await w1.claim_one()
    assert await store.submit([unique()], LIMITS) == [Accepted(first, replayed=False, existing=True)]
    assert (await read(store, first)).spec.unique_key == "u"


async def test_two_of_one_key_in_one_group_are_one_task(store: Store) -> None:
    first, second = unique(), unique()
    assert await submit(store, first, second) == [first.id, first.id]
    assert await store.read([second.id]) == [None]


async def test_keys_of_tenants_and_other_keys_are_independent(store: Store) -> None:
    items = [unique(), unique(tenant="b"), unique(unique_key="v")]
    assert await submit(store, *items) == [item.id for item in items]


async def test_a_key_holds_over_types_and_queues(store: Store) -> None:
    [first] = await submit(store, unique())
    assert await submit(store, unique(task_type="other", queue="b")) == [first]


async def test_refuse_names_the_task_that_has_the_key(store: Store, redis_client: Redis) -> None:
    [first] = await submit(store, unique())
    before = await everything(redis_client)

    [outcome] = await store.submit([unique("refuse", key="k")], LIMITS)
    assert isinstance(outcome, UniqueConflict)
    assert (outcome.task_id, outcome.status) == (first, "queued")
    assert await everything(redis_client) == before


@pytest.mark.parametrize("more", [{}, {"delay_ms": 1000}, {"deadline_ms": 1000}])
async def test_replace_cancels_what_waits(store: Store, w1: Hand, more: dict[str, Any]) -> None:
    old, new = unique(**more), unique("replace")
    await submit(store, old)
    assert await submit(store, new) == [new.id]

    assert (await read(store, old.id)).status is Status.CANCELED
    [event] = await store.events(old.id)
    assert msgspec.json.decode(event.data) == {
        "status": "canceled", "attempt": 0, "reason": "replaced", "by": new.id
    }  # fmt: skip
    assert [task.id for task in await w1.claim(sync=9)] == [new.id]


async def test_replace_cancels_what_is_to_be_tried_again(store: Store, w1: Hand) -> None:
    [old] = await submit(store, unique())
    await w1.finish(await w1.claim_one(), "retry", retry_delay_ms=1000)
    [new] = await submit(store, unique("replace"))
    assert new != old
    assert (await read(store, old)).status is Status.CANCELED


async def test_replace_gives_the_place_of_a_concurrency_key_to_the_next(store: Store, w1: Hand) -> None:
    old, blocked = unique(concurrency_key="c"), submission(concurrency_key="c")
    await submit(store, old, blocked)
    await submit(store, unique("replace", delay_ms=1000))
    assert [task.id for task in await w1.claim(sync=9)] == [blocked.id]


async def test_replace_lets_what_runs_be(store: Store, w1: Hand, redis_client: Redis) -> None:
    [first] = await submit(store, unique())
    await w1.claim_one()
    before = await everything(redis_client)
    [outcome] = await store.submit([unique("replace")], LIMITS)
    assert isinstance(outcome, UniqueConflict)
    assert (outcome.task_id, outcome.status) == (first, "running")
    assert await everything(redis_client) == before

    await store.cancel(first)
    [outcome] = await store.submit([unique("replace")], LIMITS)
    assert isinstance(outcome, UniqueConflict)
    assert outcome.status == "canceling"


@pytest.mark.parametrize(
    "limits",
    [
        Limits(queue=QueueLimits(tasks=1)),
        Limits(queue=QueueLimits(bytes=2050)),
        Limits(tenant=TenantLimits(tasks=1)),
        Limits(tenant=TenantLimits(bytes=2050)),
    ],
)
@pytest.mark.parametrize("delay_ms", [0, 1000])
async def test_what_replaces_takes_the_place_of_what_it_replaces(store: Store, limits: Limits, delay_ms: int) -> None:
    [first] = await submit(store, unique(delay_ms=delay_ms), limits=limits)
    [second] = await submit(store, unique("replace"), limits=limits)
    assert (await read(store, first)).status is Status.CANCELED
    assert isinstance((await store.submit([submission()], limits))[0], Refused)
    assert (await read(store, second)).status is Status.QUEUED


async def test_what_replaces_may_not_take_more_than_there_is(store: Store) -> None:
    limits = Limits(queue=QueueLimits(bytes=2050))
    await submit(store, unique(), limits=limits)
    [outcome] = await store.submit([unique("replace", payload=b"larger")], limits)
    assert isinstance(outcome, QueueFull)


async def test_what_would_replace_but_is_not_admitted_replaces_nothing(store: Store) -> None:
    limits = Limits(queue=QueueLimits(tasks=1))
    [first, _] = await submit(store, unique(queue="other"), submission(), limits=limits)
    [outcome] = await store.submit([unique("replace")], limits)
    assert isinstance(outcome, QueueFull)
    assert (await read(store, first)).status is Status.QUEUED


async def test_the_existing_one_is_answered_when_the_queue_is_full(store: Store) -> None:
    [first] = await submit(store, unique(), limits=Limits(queue=QueueLimits(tasks=1)))
    assert await store.submit([unique()], Limits(queue=QueueLimits(tasks=1))) == [
        Accepted(first, replayed=False, existing=True)
    ]


async def test_the_existing_one_is_answered_at_any_rate_and_uses_none_up(store: Store, clock: Clock) -> None:
    limits = Limits(tenant=TenantLimits(rate_per_s=1, burst=1))
    [first] = await submit(store, unique(), limits=limits)
    assert (
        await store.submit([unique(), unique(key="k")], limits) == [Accepted(first, replayed=False, existing=True)] * 2
    )
    assert await store.submit([unique(key="k")], limits) == [Accepted(first, replayed=True)]
    [refused] = await store.submit([unique("replace")], limits)
    assert isinstance(refused, RateLimited)
    clock.advance(1000)
    assert await submit(store, unique("replace"), limits=limits) != [first]


async def test_a_spilled_task_takes_its_key_when_it_is_redriven(store: Store, redis_client: Redis) -> None:
    spills = Limits(queues={"default": QueueLimits(tasks=1, on_full="spill", spill_tasks=10, spill_bytes=10_000)})
    await submit(store, submission(), limits=spills)
    [spilled] = await submit(store, unique(), limits=spills)
    assert (await read(store, spilled)).status is Status.FAILED
    assert await redis_client.get(KEY) is None
    [second] = await submit(store, unique())
    with pytest.raises(UniqueConflict):
        await store.redrive(spilled, limits=LIMITS, request_id="r")
    await store.cancel(second)
    await store.redrive(spilled, limits=LIMITS, request_id="r")
    assert await redis_client.get(KEY) == spilled.encode()


async def test_the_same_submission_again_replaces_nothing(store: Store, redis_client: Redis) -> None:
    item = unique("replace")
    await submit(store, unique())
    await submit(store, item)
    before = await everything(redis_client)
    assert await store.submit([item], LIMITS) == [Accepted(item.id, replayed=False)]
    assert await everything(redis_client) == before


async def test_an_idempotency_key_replays_the_existing_one_also_when_it_has_ended(store: Store, w1: Hand) -> None:
    [first] = await submit(store, unique(key="a"))
    assert await submit(store, unique(key="b")) == [first]
    await w1.finish(await w1.claim_one())
    assert await store.submit([unique(key="b")], LIMITS) == [Accepted(first, replayed=True)]
    [second] = await submit(store, unique(key="c"))
    assert second != first


async def _succeeds(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    await w1.finish(await w1.claim_one())


async def _fails(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    await w1.finish(await w1.claim_one(), "failed")


async def _uses_its_attempts_up(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    await w1.finish(await w1.claim_one(), "retry", max_attempts=1)


async def _canceled_while_it_waits(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    await store.cancel(task_id)


async def _canceled_while_it_runs(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    task = await w1.claim_one()
    await store.cancel(task_id)
    await w1.finish(task, "canceled")


async def _canceled_and_handed_back(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    task = await w1.claim_one()
    await store.cancel(task_id)
    await w1.hand_back(task)


async def _canceled_and_its_supervisor_is_gone(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    await w1.claim_one()
    await store.cancel(task_id)
    w2 = Hand(store, "w2")
    await w2.beat()
    await w2.reap(w1)


async def _lost_for_the_last_time(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    w2 = Hand(store, "w2")
    await w2.beat()
    for one, other in [(w1, w2), (w2, w1), (w1, w2)]:
        await one.beat()
        await one.claim_one()
        await other.reap(one)


async def _expires_by_promote(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    clock.advance(1000)
    await store.promote(0)


async def _expires_at_a_claim(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    clock.advance(1000)
    assert await w1.claim() == []


async def _fails_unserved(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    assert await store.fail_unserved(0, w1.id, queue="default", task_type="echo", after_s=1) == 1


async def _is_purged(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    await store.cancel(task_id)
    clock.advance(RETENTION_MS)
    await store.trim(0)


async def _is_deleted(store: Store, w1: Hand, task_id: str, clock: Clock) -> None:
    await store.cancel(task_id)
    await store.delete(task_id)


WAYS = [
    _succeeds, _fails, _uses_its_attempts_up, _canceled_while_it_waits, _canceled_while_it_runs,
    _canceled_and_handed_back, _canceled_and_its_supervisor_is_gone, _lost_for_the_last_time, _expires_by_promote,
    _expires_at_a_claim, _fails_unserved, _is_purged, _is_deleted,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_is_free_however_its_task_ended(
    store: Store,
    w1: Hand,
    clock: Clock,
    redis_client: Redis,
    way: Callable[[Store, Hand, str, Clock], Awaitable[None]],
) -> None:
    more: dict[str, Any] = {"deadline_ms": 1000} if "expires" in way.__name__ else {}
    [first] = await submit(store, unique(**more))
    assert await redis_client.get(KEY) == first.encode()
    await way(store, w1, first, clock)

    assert await redis_client.get(KEY) is None
    second = unique("refuse")
    assert await submit(store, second) == [second.id]


@pytest.mark.parametrize("more", [{}, {"delay_ms": 60_000}])
async def test_what_can_never_start_any_more_is_in_nobodys_way(
    store: Store, w1: Hand, clock: Clock, more: dict[str, Any]
) -> None:
    """Although no supervisor has come to expire it."""
    [first] = await submit(store, unique(deadline_ms=1000, **more))
    clock.advance(999)
    assert await submit(store, unique()) == [first]
    clock.advance(1)
    second = unique()
    assert await submit(store, second) == [second.id]
    assert (await read(store, first)).status is Status.EXPIRED


async def test_what_was_started_before_its_deadline_keeps_its_key_after_it(
    store: Store, w1: Hand, clock: Clock
) -> None:
    [first] = await submit(store, unique(deadline_ms=1000))
    await w1.finish(await w1.claim_one(), "retry", retry_delay_ms=60_000)
    clock.advance(1000)
    assert await submit(store, unique()) == [first]


@pytest.mark.parametrize("way", ["retry", "hand_back", "reap"])
async def test_a_key_stays_taken_while_its_task_waits_for_its_next_attempt(
    store: Store, w1: Hand, w2: Hand, way: str
) -> None:
    [first] = await submit(store, unique())
    task = await w1.claim_one()
    if way == "retry":
        await w1.finish(task, "retry", retry_delay_ms=100)
    elif way == "hand_back":
        await w1.hand_back(task)
    else:
        await w2.reap(w1)
    assert await store.submit([unique()], LIMITS) == [Accepted(first, replayed=False, existing=True)]


async def test_a_stale_end_does_not_free_the_key_of_the_one_that_came_after(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis
) -> None:
    await submit(store, unique())
    stale = await w1.claim_one()
    await w2.reap(w1)
    await w2.finish(await w2.claim_one())
    [second] = await submit(store, unique())
    assert await w1.finish(stale) == "stale"
    assert await redis_client.get(KEY) == second.encode()


@pytest.mark.parametrize("left", ["of a record that is gone", "of a task that has ended"])
async def test_a_key_that_was_left_behind_is_free(store: Store, w1: Hand, redis_client: Redis, left: str) -> None:
    [first] = await submit(store, unique())
    await w1.finish(await w1.claim_one())
    await redis_client.set(KEY, first if "ended" in left else "no such task")

    second = unique("refuse")
    assert await submit(store, second) == [second.id]


async def test_what_a_handler_submits_has_its_key(store: Store, w1: Hand) -> None:
    await submit(store)
    item = unique()
    await w1.finish(await w1.claim_one(), submitted=[item])
    assert await store.submit([unique()], LIMITS) == [Accepted(item.id, replayed=False, existing=True)]


@pytest.mark.parametrize("on_conflict", ["return", "refuse"])
async def test_a_conflict_leaves_out_what_a_handler_submits_and_says_so(
    store: Store, w1: Hand, on_conflict: str
) -> None:
    [first] = await submit(store, unique(delay_ms=1000))
    [parent] = await submit(store)
    item, other = unique(on_conflict), submission()
    assert await w1.finish(await w1.claim_one(), submitted=[item, other]) == "succeeded"

    assert await store.read([item.id]) == [None]
    assert (await read(store, other.id)).status is Status.QUEUED
    events = await store.events(parent)
    assert [event.name for event in events] == ["status", "skipped", "status"]
    assert msgspec.json.decode(events[1].data) == {"task_id": item.id, "unique_task_id": first}
    assert [event.seq for event in events] == [2, 3, 4]
    assert (await read(store, parent)).version == 4


async def test_what_a_handler_submits_replaces_what_waits(store: Store, w1: Hand) -> None:
    [old] = await submit(store, unique(delay_ms=1000))
    await submit(store)
    item = unique("replace")
    await w1.finish(await w1.claim_one(), submitted=[item])
    assert (await read(store, old)).status is Status.CANCELED
    assert (await read(store, item.id)).status is Status.QUEUED


async def test_a_task_submits_its_own_successor(store: Store, w1: Hand, redis_client: Redis) -> None:
    await submit(store, unique())
    successor = unique("refuse", delay_ms=1000)
    task = await w1.claim_one()
    await w1.finish(task, submitted=[successor])
    assert await redis_client.get(KEY) == successor.id.encode()
    assert await w1.finish(task, submitted=[successor]) == "done"
    assert await redis_client.get(KEY) == successor.id.encode()


async def test_a_task_that_fails_submits_no_successor_and_frees_its_key(
    store: Store, w1: Hand, redis_client: Redis
) -> None:
    await submit(store, unique())
    await w1.finish(await w1.claim_one(), "failed", submitted=[unique()])
    assert await redis_client.get(KEY) is None


async def test_a_redriven_task_takes_its_key_again(store: Store, w1: Hand, redis_client: Redis) -> None:
    [first] = await submit(store, unique())
    await w1.finish(await w1.claim_one(), "failed")
    await store.redrive(first, limits=LIMITS, request_id="r")
    assert await redis_client.get(KEY) == first.encode()


async def test_a_redrive_is_refused_while_another_has_the_key(store: Store, w1: Hand, redis_client: Redis) -> None:
    [first] = await submit(store, unique())
    await w1.finish(await w1.claim_one(), "failed")
    [second] = await submit(store, unique())
    before = await everything(redis_client)
    with pytest.raises(UniqueConflict) as caught:
        await store.redrive(first, limits=LIMITS, request_id="r")
    assert (caught.value.task_id, caught.value.status) == (second, "queued")
    assert await everything(redis_client) == before


async def test_what_can_never_start_any_more_is_in_no_redrives_way(
    store: Store, w1: Hand, clock: Clock, redis_client: Redis
) -> None:
    [first] = await submit(store, unique())
    await w1.finish(await w1.claim_one(), "failed")
    [second] = await submit(store, unique(deadline_ms=1000))
    clock.advance(1000)
    await store.redrive(first, limits=LIMITS, request_id="r")
    assert (await read(store, second)).status is Status.EXPIRED
    assert await redis_client.get(KEY) == first.encode()


async def test_a_task_without_a_key_has_no_field_for_it(store: Store, redis_client: Redis) -> None:
    [first] = await submit(store)
    assert not await redis_client.hexists(keys.task(0, first), "unique")

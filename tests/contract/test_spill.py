"""submit where a full queue spills: (nothing) -> failed, a dead letter of kind `overflow`; and where callers wait."""

import json
from typing import Any

import pytest
from redis.asyncio import Redis

from taskgate.contract.errors import DeadlinePassed, IdempotencyConflict, QueueFull, QuotaExceeded, RateLimited, Refused
from taskgate.contract.models import UNLIMITED, Accepted, Limits, QueueLimits, Submission, TenantLimits
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock, dead_letters
from tests.contract.conftest import LIMITS, Hand, read, submission, submit

SLOW = TenantLimits(rate_per_s=1)


def spilling(tasks: int = 1, *, tenant: TenantLimits = UNLIMITED, **spill: Any) -> Limits:
    queue = QueueLimits(tasks=tasks, on_full="spill", **{"spill_tasks": 2, "spill_bytes": 1 << 20, **spill})
    return Limits(queues={"default": queue}, tenant=tenant)


def holding(tasks: int = 1, *, on_full: str = "wait", tenant: TenantLimits = UNLIMITED, **more: Any) -> Limits:
    return Limits(queues={"default": QueueLimits(tasks=tasks, on_full=on_full, **more)}, tenant=tenant)


async def spilled(store: Store, item: Submission, limits: Limits) -> str:
    """Submit, and require that it is spilled; its id."""
    [outcome] = await store.submit([item], limits)
    assert outcome == Accepted(item.id, replayed=False, spilled=True)
    return item.id


async def refused(store: Store, limits: Limits, item: Submission | None = None) -> Refused:
    [outcome] = await store.submit([item or submission()], limits)
    assert isinstance(outcome, Refused)
    return outcome


async def test_a_task_too_many_is_a_dead_letter_that_was_never_queued(store: Store, w1: Hand, clock: Clock) -> None:
    [first] = await submit(store, limits=spilling())
    task_id = await spilled(store, submission(payload=b'{"n":1}', delay_ms=5, deadline_ms=9), spilling())
    due_ms, deadline_ms = clock.now + 5, clock.now + 9

    record = await read(store, task_id)
    assert (record.status, record.version, record.attempt) == (Status.FAILED, 1, 0)
    assert (record.due_ms, record.deadline_ms, record.finished_ms) == (due_ms, deadline_ms, clock.now)
    assert json.loads(record.error) == {
        "kind": "overflow",
        "message": "it was not queued: queue-tasks was reached when it came",
        "limit": "queue-tasks",
    }
    [event] = await store.events(task_id)
    assert json.loads(event.data) == {"status": "failed", "attempt": 0, "error": json.loads(record.error)}
    assert await dead_letters(store) == [task_id]
    clock.advance(60_000)
    await store.promote(0)
    assert [task.id for task in await w1.claim(5)] == [first]


async def test_a_redriven_one_runs_and_makes_room_for_another(store: Store, w1: Hand) -> None:
    limits = spilling(spill_tasks=1)
    await submit(store, limits=limits)
    task_id = await spilled(store, submission(payload=b'{"n":1}'), limits)
    assert (await refused(store, limits)).limit == "queue-tasks"
    with pytest.raises(QueueFull):
        await store.redrive(task_id, request_id="r", limits=limits)

    await w1.claim_one()
    await store.redrive(task_id, request_id="r", limits=limits)
    await spilled(store, submission(), limits)
    task = await w1.claim_one()
    assert (task.id, task.payload, task.attempt) == (task_id, b'{"n":1}', 1)
    await w1.finish(task, "failed", error=b'{"kind":"exception"}')  # a usual dead letter by now


@pytest.mark.parametrize("rate_per_s", [0, 1])
async def test_a_redriven_one_does_not_start_before_its_time(
    store: Store, w1: Hand, clock: Clock, rate_per_s: float
) -> None:
    await submit(store, limits=spilling())
    later = await spilled(store, submission(delay_ms=5_000, deadline_ms=9_000), spilling(spill_tasks=9))
    at = await spilled(store, submission(run_at_ms=clock.now + 5_000), spilling(spill_tasks=9))
    never = await spilled(store, submission(delay_ms=5_000, deadline_ms=4_000), spilling(spill_tasks=9))
    await w1.claim_one()
    ids = [later, at, never]
    assert (
        await store.redrive_letters(ids, request_id="r", limits=LIMITS, first_ms=clock.now, rate_per_s=rate_per_s)
        == [None] * 3
    )
    for wanted in (Status.SCHEDULED, Status.EXPIRED):
        assert [(await read(store, each)).status for each in ids] == [Status.SCHEDULED, Status.SCHEDULED, wanted]
        clock.advance(4_999 if wanted is Status.SCHEDULED else 1)
        await store.promote(0)
    assert {task.id for task in await w1.claim(5)} == {later, at}


async def test_the_start_deadline_of_a_redriven_one_holds(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, limits=spilling())
    task_id = await spilled(store, submission(deadline_ms=1_000), spilling())
    await w1.claim_one()
    clock.advance(999)
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    record = await read(store, task_id)
    assert (record.status, record.due_ms, record.deadline_ms) == (Status.QUEUED, 0, clock.now + 1)
    clock.advance(1)
    await store.promote(0)
    assert (await read(store, task_id)).status is Status.EXPIRED


async def test_one_whose_start_deadline_is_over_cannot_be_redriven(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, limits=spilling())
    task_id = await spilled(store, submission(deadline_ms=1_000), spilling())
    await w1.claim_one()
    clock.advance(1_000)
    with pytest.raises(DeadlinePassed):
        await store.redrive(task_id, request_id="r", limits=LIMITS)
    assert (await read(store, task_id)).status is Status.FAILED
    assert await dead_letters(store) == [task_id]


async def test_once_it_has_started_it_is_a_dead_letter_as_others(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, limits=spilling())
    task_id = await spilled(store, submission(delay_ms=5, deadline_ms=1_000), spilling())
    await w1.claim_one()
    clock.advance(5)
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    await w1.finish(await w1.claim_one(), "failed", error=b'{"kind":"exception"}')
    clock.advance(1_000)
    await store.redrive(task_id, request_id="again", limits=LIMITS)
    assert (await w1.claim_one()).id == task_id


@pytest.mark.parametrize("limits", [spilling(spill_tasks=3), spilling(spill_tasks=9, spill_bytes=3 * 2050)])
async def test_the_bound_of_what_is_spilled_is_exact(store: Store, limits: Limits) -> None:
    outcomes = await store.submit([submission() for _ in range(4)], limits)
    assert [outcome.spilled for outcome in outcomes if isinstance(outcome, Accepted)] == [False, True, True, True]
    error = await refused(store, limits)
    assert (error.limit, error.waits) == ("queue-tasks", False)
    assert error.retry_after_s > 0


async def test_each_queue_has_its_own_bound(store: Store) -> None:
    limits = Limits(queues={name: spilling(spill_tasks=1).queues["default"] for name in "ab"})
    for queue in "ab":
        await submit(store, submission(queue=queue), limits=limits)
        await spilled(store, submission(queue=queue), limits)
        assert (await refused(store, limits, submission(queue=queue))).queue == queue


@pytest.mark.parametrize("how", ["delete", "trim", "bytes"])
async def test_what_is_gone_makes_room_for_another(store: Store, redis_client: Redis, clock: Clock, how: str) -> None:
    limits = spilling(spill_tasks=1)
    await submit(store, limits=limits)
    task_id = await spilled(store, submission(), limits)
    if how == "delete":
        await store.delete(task_id)
    elif how == "trim":
        clock.advance(604_800_000)
        assert await store.trim(0) == 1
    else:
        assert await Store(redis_client, clock=clock, retention_bytes=100).trim(0) == 1
    assert await store.read([task_id]) == [None]
    await spilled(store, submission(), limits)


async def test_a_tenant_at_its_limit_spills_too(store: Store) -> None:
    limits = spilling(10, tenant=TenantLimits(tasks=1))
    await submit(store, submission(tenant="a"), limits=limits)
    task_id = await spilled(store, submission(tenant="a"), limits)
    assert json.loads((await read(store, task_id)).error)["limit"] == "tenant-tasks"
    await submit(store, submission(tenant="b"), limits=limits)


@pytest.mark.parametrize("room", [{"spill_tasks": 5}, {"spill_bytes": 5 * 2050}])
async def test_tenants_over_their_own_limits_leave_half_of_the_room_to_others(
    store: Store, room: dict[str, int]
) -> None:
    limits = spilling(2, tenant=TenantLimits(tasks=1), **{"spill_tasks": 9, **room})
    await submit(store, submission(tenant="a"), limits=limits)
    for _ in range(2):
        await spilled(store, submission(tenant="a"), limits)
    assert (await refused(store, limits, submission(tenant="a"))).limit == "tenant-tasks"
    await submit(store, submission(tenant="b"), limits=limits)
    for _ in range(3):
        await spilled(store, submission(tenant="c"), limits)
    assert (await refused(store, limits, submission(tenant="c"))).limit == "queue-tasks"


@pytest.mark.parametrize("limits", [spilling(tenant=SLOW), holding(tenant=SLOW)])
async def test_who_is_too_fast_is_refused_all_the_same(store: Store, limits: Limits) -> None:
    await submit(store, limits=limits)
    error = await refused(store, limits)
    assert (type(error), error.waits) == (RateLimited, False)


async def test_what_is_spilled_counts_for_the_rate(store: Store) -> None:
    limits = spilling(tenant=TenantLimits(rate_per_s=1, burst=2))
    await submit(store, limits=limits)
    await spilled(store, submission(), limits)
    assert isinstance(await refused(store, limits), RateLimited)


async def test_its_idempotency_key_stands_for_it(store: Store, w1: Hand) -> None:
    await submit(store, limits=spilling())
    task_id = await spilled(store, submission(key="k", body="b"), spilling())
    await w1.claim_one()
    [replay] = await store.submit([submission(key="k", body="b")], spilling())
    assert replay == Accepted(task_id, replayed=True)
    [conflict] = await store.submit([submission(key="k", body="other")], spilling())
    assert isinstance(conflict, IdempotencyConflict)


async def test_it_takes_its_unique_key_when_it_is_redriven(store: Store, w1: Hand) -> None:
    await submit(store, limits=spilling())
    task_id = await spilled(store, submission(unique_key="u"), spilling())
    await w1.claim_one()
    await store.redrive(task_id, request_id="r", limits=spilling())
    [outcome] = await store.submit([submission(unique_key="u")], spilling())
    assert outcome == Accepted(task_id, replayed=False, existing=True)


async def test_its_unique_key_is_free_for_others(store: Store, w1: Hand) -> None:
    await submit(store, limits=spilling())
    await spilled(store, submission(unique_key="u"), spilling())
    await w1.claim_one()
    await submit(store, submission(unique_key="u"), limits=spilling())


async def test_what_would_be_replaced_stays_when_the_new_one_spills(store: Store) -> None:
    [first, _] = await submit(store, submission(unique_key="u", queue="other"), submission(), limits=spilling())
    await spilled(store, submission(unique_key="u", on_conflict="replace"), spilling())
    assert (await read(store, first)).status is Status.QUEUED


async def test_who_waits_takes_no_place_in_the_virtual_row(store: Store) -> None:
    await submit(store)
    for _ in range(50):
        assert (await refused(store, holding())).waits
    alone = await refused(store, holding(on_full="refuse"))
    assert not alone.waits
    assert alone.retry_after_s == pytest.approx(1, abs=0.02)


async def test_behind_one_that_waits_for_the_queue_nobody_of_the_same_call_gets_in(store: Store) -> None:
    limits = holding(10, bytes=9000)
    await submit(store, submission(payload=b"x" * 4000), limits=limits)
    outcomes = await store.submit([submission(payload=b"x" * 4000), submission()], limits)
    assert [getattr(outcome, "limit", None) for outcome in outcomes] == ["queue-bytes", "queue-bytes"]
    assert all(outcome.waits for outcome in outcomes if isinstance(outcome, QueueFull))


async def test_one_that_waits_for_its_tenants_limit_holds_nobody_else_up(store: Store) -> None:
    limits = holding(10, tenant=TenantLimits(tasks=1))
    await submit(store, submission(tenant="a"), limits=limits)
    waits, other = await store.submit([submission(tenant="a"), submission(tenant="b")], limits)
    assert isinstance(waits, QuotaExceeded)
    assert waits.waits
    assert isinstance(other, Accepted)


async def test_what_can_never_have_room_does_not_wait_for_it(store: Store) -> None:
    limits = holding(10, bytes=3000)
    await submit(store, limits=limits)
    error = await refused(store, limits, submission(payload=b"x" * 3000))
    assert (error.limit, error.waits) == ("queue-bytes", False)


async def test_where_others_wait_who_does_not_is_refused_whatever_room_there_is(
    store: Store, redis_client: Redis
) -> None:
    limits = holding(10).where_others_wait("queue-bytes", on_full="refuse")
    error = await refused(store, limits)
    assert (error.limit, error.waits) == ("queue-bytes", False)
    assert error.retry_after_s < 2, "room there is"
    assert await redis_client.dbsize() == 0
    [task_id] = await submit(store, submission(key="k"))
    [replay] = await store.submit([submission(key="k")], limits)
    assert replay == Accepted(task_id, replayed=True)


async def test_what_replaces_its_like_needs_no_room_of_those_who_wait(store: Store) -> None:
    [first] = await submit(store, submission(unique_key="u"), limits=holding())
    limits = holding().where_others_wait("queue-tasks", on_full="refuse")
    larger = submission(payload=b"larger", unique_key="u", on_conflict="replace")
    assert (await refused(store, limits, larger)).limit == "queue-tasks"
    await submit(store, submission(unique_key="u", on_conflict="replace"), limits=limits)
    assert (await read(store, first)).status is Status.CANCELED

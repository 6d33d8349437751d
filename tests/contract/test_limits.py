"""Admission by limits: of queues and tenants, by tasks, bytes and expected wait; and when refused ones come again."""

import itertools

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import QueueFull, QuotaExceeded, Refused
from taskgate.contract.models import Accepted, Limits, QueueLimits, Submission, TenantLimits
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import Hand, read, submission, submit

TASK = 2 + 2048
"""Bytes of a task with the payload `{}`."""


def of_tenants(**tenants: TenantLimits) -> Limits:
    return Limits(tenants=tenants)


async def refused_by(store: Store, limits: Limits, item: Submission | None = None) -> Refused:
    [outcome] = await store.submit([item or submission()], limits)
    assert isinstance(outcome, Refused), outcome
    return outcome


async def drain(hand: Hand, clock: Clock, per_s: int, *, seconds: int = 3) -> None:
    """So many tasks leave in each of that many seconds."""
    for _ in range(seconds):
        clock.advance(1000)
        assert len(await hand.claim(sync=per_s)) == per_s


async def test_a_tenant_may_have_as_much_waiting_as_its_limit_in_all_queues_together(store: Store, w1: Hand) -> None:
    limits = of_tenants(a=TenantLimits(tasks=3))
    await submit(store, *(submission(tenant="a", queue=queue) for queue in ("default", "b", "c")), limits=limits)

    refused = await refused_by(store, limits, submission(tenant="a", queue="d"))
    assert isinstance(refused, QuotaExceeded)
    assert (refused.limit, refused.tenant) == ("tenant-tasks", "a")
    await submit(store, submission(tenant="b"), limits=limits)
    await w1.claim_one()
    await submit(store, submission(tenant="a"), limits=limits)
    await refused_by(store, limits, submission(tenant="a"))


async def test_a_tenants_bytes_are_limited(store: Store) -> None:
    limits = Limits(tenant=TenantLimits(bytes=2 * TASK))
    await submit(store, submission(tenant="a"), submission(tenant="a"), limits=limits)

    assert (await refused_by(store, limits, submission(tenant="a", payload=b""))).limit == "tenant-bytes"
    await submit(store, submission(tenant="b"), limits=limits)


async def test_limits_of_a_tenant_are_exact_within_one_group(store: Store) -> None:
    limits = of_tenants(a=TenantLimits(tasks=2))
    items = [submission(tenant=tenant, queue=f"q{n}") for n, tenant in enumerate("abaaba")]
    outcomes = await store.submit(items, limits)
    assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True, True, True, False, True, False]


async def test_a_named_queue_has_its_own_limits_and_the_queues_come_first(store: Store) -> None:
    limits = Limits(queue=QueueLimits(tasks=1), queues={"big": QueueLimits(tasks=2)}, tenant=TenantLimits(tasks=2))
    await submit(store, submission(queue="big"), submission(queue="big"), limits=limits)
    assert (await refused_by(store, limits, submission(queue="big"))).limit == "queue-tasks"
    assert (await refused_by(store, limits, submission(queue="small"))).limit == "tenant-tasks"
    await submit(store, submission(queue="small", tenant="b"), limits=limits)


async def test_a_wait_that_nobody_has_measured_refuses_nobody(store: Store) -> None:
    await submit(store, *(submission() for _ in range(500)), limits=Limits(queue=QueueLimits(wait_ms=1)))


@pytest.mark.parametrize("limited", ["queue", "tenant"])
async def test_a_queue_takes_as_much_as_leaves_in_the_time_that_is_allowed(
    store: Store, w1: Hand, clock: Clock, limited: str
) -> None:
    """20 tasks leave in a second, so after 60 of them the next would wait for more than 3 seconds."""
    wait = TenantLimits(wait_ms=3000)
    limits = Limits(queue=QueueLimits(wait_ms=3000)) if limited == "queue" else Limits(tenant=wait)
    await submit(store, *(submission() for _ in range(100)), limits=limits)
    await drain(w1, clock, 20)
    outcomes = await store.submit([submission() for _ in range(100)], limits)

    taken = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    assert 40 + len(taken) == 61, "the last one finds 60 before it"
    assert (await refused_by(store, limits)).limit == f"{limited}-wait"
    await drain(w1, clock, 20, seconds=1)
    assert len([each for each in await store.submit([submission() for _ in range(100)], limits) if _in(each)]) == 20


def _in(outcome: object) -> bool:
    return isinstance(outcome, Accepted)


async def test_an_empty_queue_always_takes_a_task(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, *(submission() for _ in range(2)))
    await drain(w1, clock, 1, seconds=2)
    clock.advance(100_000)
    await submit(store, submission(), limits=Limits(queue=QueueLimits(wait_ms=1)))
    assert (await refused_by(store, Limits(queue=QueueLimits(wait_ms=1)))).limit == "queue-wait"


async def test_what_is_scheduled_for_later_makes_nobody_wait(store: Store, w1: Hand, clock: Clock) -> None:
    """Neither in the row nor in the measured speed: an idle hour with a task for tomorrow is no slow queue."""
    limits = Limits(queue=QueueLimits(wait_ms=1000), tenant=TenantLimits(wait_ms=1000))
    await submit(store, *(submission() for _ in range(60)), limits=limits)
    await drain(w1, clock, 20)
    await submit(store, *(submission(delay_ms=10**8) for _ in range(100)), limits=limits)
    clock.advance(3_600_000)
    await submit(store, *(submission() for _ in range(21)), limits=limits)
    await refused_by(store, limits)


async def test_a_queue_full_of_tasks_for_later_tells_long_waits(store: Store, clock: Clock) -> None:
    limits = Limits(queue=QueueLimits(tasks=2))
    await submit(store, submission(delay_ms=10**8), submission(delay_ms=10**8), limits=limits)
    clock.advance(30_000)
    assert (await refused_by(store, limits)).retry_after_s >= 30


async def test_a_queue_that_stands_takes_less_and_less(store: Store, w1: Hand, clock: Clock) -> None:
    limits = Limits(queue=QueueLimits(wait_ms=10_000))
    await submit(store, *(submission() for _ in range(100)), limits=limits)
    await drain(w1, clock, 20)
    await submit(store, submission(), limits=limits)
    clock.advance(60_000)
    assert (await refused_by(store, limits)).limit == "queue-wait"


async def test_refused_tenants_come_one_by_one_at_their_own_rate(store: Store, w1: Hand, clock: Clock) -> None:
    """Tenant a has a third of what leaves its queue."""
    limits = of_tenants(a=TenantLimits(tasks=10))
    await submit(store, *(submission(tenant=tenant) for tenant in "abc" for _ in range(10)), limits=limits)
    for _ in range(4):
        clock.advance(1000)
        await w1.claim(sync=6)
        await submit(store, submission(tenant="a"), submission(tenant="a"), limits=limits)

    waits = [(await refused_by(store, limits, submission(tenant="a"))).retry_after_s for _ in range(20)]
    steps = [after - before for before, after in itertools.pairwise(waits)]
    assert all(0.45 < step < 0.55 for step in steps), steps


@pytest.mark.parametrize(
    ("limits", "waits_s"),
    [
        (Limits(queue=QueueLimits(tasks=20)), 1.05),
        (Limits(queue=QueueLimits(bytes=20 * TASK)), 1.05),
        (Limits(queue=QueueLimits(wait_ms=1000)), 1.0),
        (Limits(queue=QueueLimits(tasks=10)), 1.55),
        (Limits(tenant=TenantLimits(tasks=20)), 1.0),
    ],
)
async def test_who_is_refused_is_told_when_enough_has_left(
    store: Store, w1: Hand, clock: Clock, limits: Limits, waits_s: float
) -> None:
    """40 wait and 20 leave in a second, whatever limit was lowered since."""
    await submit(store, *(submission() for _ in range(100)), limits=Limits(tenant=TenantLimits(tasks=1000)))
    await drain(w1, clock, 20)
    told = (await refused_by(store, limits)).retry_after_s
    assert told == pytest.approx(waits_s, abs=0.06)


async def test_a_task_larger_than_its_limit_is_refused_and_nothing_is_left_behind(
    store: Store, redis_client: Redis
) -> None:
    for limits in (Limits(queue=QueueLimits(bytes=2048)), Limits(tenant=TenantLimits(bytes=2048))):
        assert (await refused_by(store, limits)).retry_after_s == 60
    assert await redis_client.dbsize() == 0


async def test_a_task_larger_than_its_limit_takes_no_place_in_the_row_of_those_who_can_get_in(store: Store) -> None:
    limits = Limits(queue=QueueLimits(bytes=2100))
    await submit(store, limits=limits)
    first = await refused_by(store, limits)
    assert (await refused_by(store, limits, submission(payload=b"x" * 100))).retry_after_s == 60
    assert (await refused_by(store, limits)).retry_after_s == pytest.approx(first.retry_after_s, abs=0.05)


async def test_a_lowered_limit_holds_for_the_next_one(store: Store, w1: Hand) -> None:
    await submit(store, *(submission() for _ in range(5)))
    assert (await refused_by(store, Limits(queue=QueueLimits(tasks=3)))).limit == "queue-tasks"
    await w1.claim(sync=2)
    await refused_by(store, Limits(queue=QueueLimits(tasks=3)))
    await w1.claim_one()
    await submit(store, submission(), limits=Limits(queue=QueueLimits(tasks=3)))


async def test_each_partition_has_its_share_rounded_up(redis_client: Redis) -> None:
    store = Store(redis_client, partitions=3)
    limits = Limits(queue=QueueLimits(tasks=10), tenant=TenantLimits(tasks=7, bytes=10 * TASK, rate_per_s=9, burst=10))
    by_partition: dict[int, list[Submission]] = {0: [], 1: [], 2: []}
    while min(map(len, by_partition.values())) < 6:
        item = submission()
        by_partition[store.partition_of(item.id)].append(item)
    for items in by_partition.values():
        outcomes = await store.submit(items[:6], limits)
        assert sum(map(_in, outcomes)) == 3
        [outcome] = await store.submit([items[-1]], limits)
        assert isinstance(outcome, QuotaExceeded)
        assert outcome.room is not None
        assert (outcome.room.queue.tasks, outcome.room.waiting) == (4, 3)
        assert (outcome.room.tenant.tasks, outcome.room.tenant.burst, outcome.room.tenant.rate_per_s) == (3, 4, 3.0)
    await redis_client.flushdb()  # the checks after a test know one partition


async def test_every_answer_says_what_is_left(store: Store, w1: Hand) -> None:
    limits = Limits(queue=QueueLimits(tasks=4), tenant=TenantLimits(tasks=4))
    [one, two, other] = await store.submit([submission(), submission(), submission(tenant="b")], limits)
    assert isinstance(one, Accepted)
    assert isinstance(two, Accepted)
    assert isinstance(other, Accepted)
    assert one.room is two.room, "made once for all that are alike"
    assert one.room is not None
    assert other.room is not None
    assert (one.room.waiting, one.room.waiting_bytes) == (3, 3 * TASK)
    assert (one.room.tenant_waiting, one.room.tenant_waiting_bytes) == (2, 2 * TASK)
    assert other.room.tenant_waiting == 1
    await w1.claim(sync=3)
    await submit(store, *(submission() for _ in range(4)), limits=limits)
    full = await refused_by(store, limits, submission(tenant="b"))
    assert isinstance(full, QueueFull)
    assert full.room is not None
    assert (full.room.waiting, full.room.tenant_waiting) == (4, 0)


async def test_a_replay_and_a_repeat_are_answered_at_every_limit(store: Store) -> None:
    first = submission(key="k")
    await submit(store, first)
    limits = Limits(queue=QueueLimits(tasks=1, bytes=1, wait_ms=1), tenant=TenantLimits(tasks=1, bytes=1, wait_ms=1))
    [replay, repeat, over] = await store.submit([submission(key="k"), first, submission()], limits)
    assert replay == Accepted(first.id, replayed=True)
    assert repeat == Accepted(first.id, replayed=False)
    assert isinstance(over, QueueFull)


async def test_a_redrive_goes_by_the_limits_of_its_tenant(store: Store, w1: Hand) -> None:
    [dead] = await submit(store, submission(tenant="a"))
    await w1.finish(await w1.claim_one(), "failed")
    limits = of_tenants(a=TenantLimits(tasks=1))
    await submit(store, submission(tenant="a", queue="b"), limits=limits)
    with pytest.raises(QuotaExceeded) as refused:
        await store.redrive(dead, request_id="r", limits=limits)
    assert (refused.value.limit, refused.value.tenant) == ("tenant-tasks", "a")
    await store.redrive(dead, request_id="r", limits=of_tenants(a=TenantLimits(tasks=2)))
    assert (await read(store, dead)).status == "queued"


async def test_only_tenants_with_limits_are_measured_and_their_speed_goes_with_their_tasks(
    store: Store, w1: Hand, clock: Clock, redis_client: Redis
) -> None:
    limits = of_tenants(a=TenantLimits(tasks=10))
    await submit(store, *(submission(tenant=tenant) for tenant in "aabb"), limits=limits)
    clock.advance(1000)
    for task in await w1.claim(sync=4):
        await w1.finish(task, retention_ms=1000)
    usage = await store.usage(0)
    assert usage["drain_rate:tenant:a"] == 2
    assert "drain_at:tenant:b" not in usage
    clock.advance(2000)
    await store.trim(0)
    assert not await redis_client.exists(keys.usage(0))


async def test_who_is_refused_before_anything_was_measured_comes_apart_from_the_others(store: Store) -> None:
    limits = Limits(queue=QueueLimits(tasks=1))
    await submit(store, limits=limits)
    waits = [(await refused_by(store, limits)).retry_after_s for _ in range(200)]
    assert waits[0] == 1
    assert len(set(waits)) == 200
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(3, abs=0.1)


TWENTY = Limits(queues={"default": QueueLimits(tasks=20)})


async def a_long_row(store: Store, hand: Hand, clock: Clock, limits: Limits) -> None:
    """Twenty leave in a second, 1,480 were refused, and nothing is queued any more."""
    await submit(store, *(submission() for _ in range(80)), limits=Limits(tenant=TenantLimits(tasks=1000)))
    await drain(hand, clock, 20)
    await store.submit([submission() for _ in range(1500)], limits)
    await drain(hand, clock, 20, seconds=1)


@pytest.mark.parametrize("limits", [TWENTY, Limits(tenant=TenantLimits(tasks=20))])
async def test_once_nothing_waited_for_a_while_the_row_of_those_refused_starts_anew(
    store: Store, w1: Hand, clock: Clock, limits: Limits
) -> None:
    """Those who were told a time in it and have not come are gone, and so is the speed of a queue without tasks."""
    await a_long_row(store, w1, clock, limits)
    clock.advance(900)
    *_, told = await store.submit([submission() for _ in range(21)], limits)
    assert isinstance(told, Refused)
    assert told.retry_after_s > 50, "they may be on their way"
    await drain(w1, clock, 20, seconds=1)

    clock.advance(4000)
    *_, told, later = await store.submit([submission() for _ in range(22)], limits)
    assert isinstance(told, Refused)
    assert isinstance(later, Refused)
    assert [told.retry_after_s, later.retry_after_s] == pytest.approx([0.05, 0.1], abs=0.01)
    assert (await refused_by(store, limits)).retry_after_s == pytest.approx(0.15, abs=0.02)


async def test_a_row_that_has_ended_stays_so(store: Store, w1: Hand, clock: Clock) -> None:
    """Though the call that found it so took all that came."""
    await a_long_row(store, w1, clock, TWENTY)
    clock.advance(4000)
    await submit(store, *(submission() for _ in range(20)), limits=TWENTY)
    assert (await refused_by(store, TWENTY)).retry_after_s == pytest.approx(0.05, abs=0.01)


async def test_the_row_of_a_slow_queue_does_not_start_anew_between_two_tasks(
    store: Store, w1: Hand, clock: Clock
) -> None:
    """One leaves in ten seconds, and nothing waits until the next caller comes."""
    limits = Limits(queues={"default": QueueLimits(tasks=1)})
    for _ in range(3):
        await submit(store, limits=limits)
        clock.advance(10_000)
        await w1.claim_one()
    await submit(store, limits=limits)
    told = [(await refused_by(store, limits)).retry_after_s for _ in range(4)][-1]
    await w1.claim_one()
    clock.advance(9_000)
    await submit(store, limits=limits)
    assert (await refused_by(store, limits)).retry_after_s > told - 9

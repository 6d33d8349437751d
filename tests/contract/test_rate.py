"""Rates of tenants (GCRA): bursts, steady streams, and a row for those who come too fast."""

import asyncio
import itertools
from collections import Counter

import pytest
from redis.asyncio import Redis

from app.errors import problem_of
from taskgate.contract import keys
from taskgate.contract.errors import QueueFull, RateLimited
from taskgate.contract.models import Accepted, Limits, QueueLimits, TenantLimits
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import Hand, submission, submit

RATE = f"{keys.prefix(0)}rate:default"


def rated(per_s: float, burst: int, *, tasks: int = 100_000) -> Limits:
    return Limits(queue=QueueLimits(tasks=tasks), tenant=TenantLimits(rate_per_s=per_s, burst=burst))


async def accepted(store: Store, limits: Limits, count: int, **more: object) -> int:
    outcomes = await store.submit([submission(**more) for _ in range(count)], limits)  # type: ignore[arg-type]
    return sum(isinstance(outcome, Accepted) for outcome in outcomes)


@pytest.mark.parametrize(("per_s", "burst"), [(10, 5), (3, 3), (7, 100), (0.1, 1), (999_999, 1000), (1 / 3, 2)])
async def test_a_burst_is_taken_whole_and_no_more(store: Store, per_s: float, burst: int) -> None:
    """In one group or one by one, at any rate."""
    limits = rated(per_s, burst)
    at_once = (burst + 1) // 2
    assert await accepted(store, limits, at_once) == at_once
    for _ in range(min(5, burst - at_once)):
        assert await accepted(store, limits, 1) == 1
    assert await accepted(store, limits, burst) == burst - at_once - min(5, burst - at_once)
    [outcome] = await store.submit([submission()], limits)
    assert isinstance(outcome, RateLimited)
    assert (outcome.limit, outcome.tenant) == ("rate", "default")


async def test_one_more_is_taken_after_exactly_one_step(store: Store, clock: Clock) -> None:
    limits = rated(4, 2)
    assert await accepted(store, limits, 3) == 2
    clock.advance(249)
    assert await accepted(store, limits, 1) == 0
    clock.advance(1)
    assert await accepted(store, limits, 2) == 1
    clock.advance(500)
    assert await accepted(store, limits, 9) == 2, "a pause gives back the burst"
    clock.advance(10_000)
    assert await accepted(store, limits, 9) == 2, "and no more than it"


async def test_over_20_seconds_the_rate_is_exact(store: Store, clock: Clock) -> None:
    limits = rated(3, 5)
    taken = 0
    for _ in range(200):
        taken += await accepted(store, limits, 2)
        clock.advance(100)
    assert taken == 5 + 3 * 20 - 1, "the last step is not over yet"


async def test_the_rate_is_exact_under_many_at_once(redis_url: str) -> None:
    clients = [Redis.from_url(redis_url) for _ in range(10)]
    tries = [Store(client).submit([submission()], rated(0.001, 23)) for client in clients for _ in range(4)]
    outcomes = [outcome for group in await asyncio.gather(*tries) for outcome in group]
    assert sum(isinstance(outcome, Accepted) for outcome in outcomes) == 23
    for client in clients:
        await client.aclose()


async def test_a_clock_that_steps_back_neither_blocks_nor_gives(store: Store, clock: Clock) -> None:
    limits = rated(10, 2)
    assert await accepted(store, limits, 3) == 2
    clock.advance(-3_600_000)
    assert await accepted(store, limits, 1) == 0
    clock.advance(100)
    assert await accepted(store, limits, 2) == 1


async def test_tenants_have_rates_of_their_own_over_all_queues(store: Store) -> None:
    limits = Limits(tenant=TenantLimits(rate_per_s=1, burst=2), tenants={"free": TenantLimits()})
    items = [submission(tenant=tenant, queue=f"q{n % 2}") for n, tenant in enumerate(["a", "b", "free"] * 3)]
    outcomes = await store.submit(items, limits)
    assert [isinstance(each, Accepted) for each in outcomes] == [True] * 6 + [False, False, True]


async def test_what_another_limit_refuses_uses_no_token(store: Store, w1: Hand) -> None:
    limits = rated(1, 2, tasks=1)
    assert await accepted(store, limits, 1) == 1
    for _ in range(5):
        [outcome] = await store.submit([submission()], limits)
        assert isinstance(outcome, QueueFull)
    await w1.claim_one()
    assert await accepted(store, limits, 1) == 1
    [outcome] = await store.submit([submission()], limits)
    assert isinstance(outcome, RateLimited), "it is asked first"


async def test_replays_repeats_and_conflicts_use_no_token(store: Store) -> None:
    limits = rated(1, 2)
    first = submission(key="k", body="x")
    await submit(store, first, limits=limits)
    for _ in range(3):
        assert await store.submit([submission(key="k", body="x")], limits) == [Accepted(first.id, replayed=True)]
        assert await store.submit([first], limits) == [Accepted(first.id, replayed=False)]
        await store.submit([submission(key="k", body="y")], limits)
    assert await accepted(store, limits, 2) == 1
    assert await store.submit([submission(key="k", body="x")], limits) == [Accepted(first.id, replayed=True)]


async def test_who_comes_too_fast_is_told_a_time_of_its_own(store: Store, clock: Clock) -> None:
    """The first when one more is allowed, each other a little less than a step later, since jitter comes on top."""
    limits = rated(10, 5)
    assert await accepted(store, limits, 5) == 5
    clock.advance(30)
    outcomes = await store.submit([submission() for _ in range(20)], limits)
    waits = [round(each.retry_after_s * 1000) for each in outcomes if isinstance(each, RateLimited)]
    assert waits[0] == 70
    assert {after - before for before, after in itertools.pairwise(waits)} == {90, 91}


async def test_callers_who_obey_come_in_at_the_rate_and_not_all_at_once(store: Store, clock: Clock) -> None:
    """300 at once, 50 a second: whole seconds and jitter as the gateway tells them."""
    limits, began, taken = rated(50, 50), clock.now, 0
    tries: Counter[int] = Counter()
    row = [began + n % 40 for n in range(300)]
    while row:
        clock.now = min(row)
        due = [at for at in row if at == clock.now]
        row = [at for at in row if at > clock.now]
        for outcome in await store.submit([submission() for _ in due], limits):
            tries[(clock.now - began) // 1000] += 1
            if isinstance(outcome, Accepted):
                taken += 1
                continue
            assert isinstance(outcome, RateLimited)
            row.append(clock.now + 1000 * int(problem_of(outcome).headers["Retry-After"]) + len(row) % 20)
    assert taken == 300
    assert (300 - 50) * 1000 / (clock.now - began) > 0.7 * 50
    assert sum(tries.values()) < 3 * 300
    assert max(count for second, count in tries.items() if second) < 2 * 50


async def test_the_row_is_bounded_and_moves_on(store: Store, clock: Clock) -> None:
    limits = rated(1, 1)
    outcomes = await store.submit([submission() for _ in range(100)], limits)
    waits = [each.retry_after_s for each in outcomes if isinstance(each, RateLimited)]
    assert waits[:3] == [1, 1.91, 2.819]
    assert waits[-30:] == [60] * 30
    clock.advance(100_000)
    assert await accepted(store, limits, 1) == 1
    [outcome] = await store.submit([submission()], limits)
    assert isinstance(outcome, RateLimited)
    assert outcome.retry_after_s == 1


async def test_a_changed_rate_holds_for_the_next_one(store: Store, clock: Clock) -> None:
    """It counts what came before in submissions, not in the time that they took up at the old rate."""
    assert await accepted(store, rated(0.05, 10), 20) == 10
    assert await accepted(store, rated(100, 10), 1) == 0
    clock.advance(10)
    [_, refused] = await store.submit([submission(), submission()], rated(100, 10))
    assert isinstance(refused, RateLimited)
    assert refused.retry_after_s < 0.2
    clock.advance(100)
    assert await accepted(store, rated(100, 10), 20) == 10
    assert await accepted(store, rated(100, 100), 100) == 90, "a larger burst is there at once"
    assert await accepted(store, rated(100, 1), 1) == 0
    clock.advance(10)
    assert await accepted(store, rated(100, 1), 2) == 1, "and a smaller one forgets what only the larger took"
    assert await accepted(store, Limits(), 20) == 20


async def test_once_the_rate_was_not_used_for_a_while_the_row_of_those_refused_starts_anew(
    store: Store, clock: Clock
) -> None:
    """Those who were told a time in it and have not come are gone."""
    limits = rated(20, 20)
    assert await accepted(store, limits, 1500) == 20
    clock.advance(1000)
    assert await accepted(store, limits, 20) == 20
    [refused] = await store.submit([submission()], limits)
    assert isinstance(refused, RateLimited)
    assert refused.retry_after_s > 50, "they may be on their way"
    clock.advance(3000)
    *_, refused = await store.submit([submission() for _ in range(21)], limits)
    assert isinstance(refused, RateLimited)
    assert refused.retry_after_s == 0.05


async def test_what_is_left_of_the_rate_is_told(store: Store, clock: Clock) -> None:
    limits = rated(10, 5)
    rooms = []
    for count in (2, 3, 1):
        [*_, outcome] = await store.submit([submission() for _ in range(count)], limits)
        assert isinstance(outcome, Accepted | RateLimited)
        assert outcome.room is not None
        rooms.append((outcome.room.rate_left, outcome.room.rate_more_ms))
        clock.advance(20)
    assert rooms == [(3, 100), (0, 80), (0, 60)]
    clock.advance(10_000)
    [replay] = await store.submit([submission(key="k")], limits)
    assert isinstance(replay, Accepted)
    assert replay.room is not None
    assert (replay.room.rate_left, replay.room.rate_more_ms) == (4, 100)


async def test_a_tenant_without_a_rate_has_no_key_and_others_lose_theirs(store: Store, redis_client: Redis) -> None:
    await submit(store)
    assert not await redis_client.exists(RATE)
    await submit(store, submission(), limits=rated(10, 5))
    assert 0 < await redis_client.pttl(RATE) <= 61_000

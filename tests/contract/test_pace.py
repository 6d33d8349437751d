"""pace: how fast a queue moves, as what is claimed tells."""

import pytest

from taskgate.contract.errors import QueueFull
from taskgate.contract.models import Limits, Pace, QueueLimits
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import Hand, submission, submit


async def test_nothing_is_known_of_a_queue_that_nobody_used(store: Store, clock: Clock) -> None:
    assert await store.pace(0, "none", "echo") == Pace(clock.now, None, 0, None, 0, 0, 0)


async def test_claims_are_counted_and_sharers_too(store: Store, w1: Hand, clock: Clock) -> None:
    await submit(store, *(submission(tenant=tenant) for tenant in "aabb"), submission("other"), submission("other"))
    began = clock.now
    assert await store.pace(0, "default", "echo") == Pace(clock.now, began, 0, None, 6, 2, 2)
    clock.advance(400)
    assert len(await w1.claim(3)) == 3
    assert await store.pace(0, "default", "echo") == Pace(clock.now, began, 3, None, 3, 2, 2)
    clock.advance(600)
    await w1.claim_one()
    pace = await store.pace(0, "default", "echo")
    assert (pace.since_ms, pace.left, pace.per_s, pace.waiting) == (clock.now, 0, 4.0, 2)


async def test_a_clock_that_steps_back_neither_stops_the_measuring_nor_makes_anybody_wait_for_it(
    store: Store, w1: Hand, clock: Clock
) -> None:
    limits = Limits(queue=QueueLimits(tasks=6))
    await submit(store, *(submission() for _ in range(6)), limits=limits)
    clock.advance(-600_000)
    [refused] = await store.submit([submission()], limits)
    assert isinstance(refused, QueueFull)
    assert refused.retry_after_s <= 1.1

    await w1.claim_one()
    clock.advance(1000)
    await w1.claim_one()
    assert (await store.pace(0, "default", "echo")).per_s == 2


async def test_tenants_are_named_where_they_are_asked_for(store: Store) -> None:
    await submit(store, *(submission(tenant=tenant) for tenant in "abc"), submission("other", tenant="d"))
    pace = await store.pace(0, "default", "echo", names=2)
    assert (pace.tenants, len(pace.names)) == (3, 2)
    assert set(pace.names) < {"a", "b", "c"}
    assert set((await store.pace(0, "default", "echo", names=9)).names) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("pace", "per_s"),
    [
        (Pace(10_000, None, 0, None, 1, 1, 1), None),
        (Pace(10_000, 9_500, 5, None, 1, 1, 1), None),
        (Pace(10_000, 8_000, 0, None, 1, 1, 1), None),
        (Pace(10_000, 8_000, 5, None, 1, 1, 1), 3.0),
        (Pace(10_000, 8_000, 0, 7.0, 1, 1, 1), 7.0),
        (Pace(10_000, 5_000, 0, 7.0, 1, 1, 1), 0.2),
        (Pace(10_000, 5_000, 99, 7.0, 1, 1, 1), 7.0),
    ],
)
def test_a_queue_that_stands_still_slows_down(pace: Pace, per_s: float | None) -> None:
    """And one that has not been seen to move says nothing."""
    assert pace.leaving_per_s() == per_s

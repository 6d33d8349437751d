"""claim: turns by weight, newcomers, and limits of tenants and types; nothing waits without somebody being told."""

from collections import Counter
from typing import Any

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import Claimed, Served, Submission
from taskgate.contract.shares import Share, shares
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import SERVED, Hand, submission, submit

ECHO = SERVED[:1]
TWO_QUEUES = [*ECHO, Served("second", "echo", "sync")]
ONE_OTHER = [*SERVED[:1], Served("default", "other", "sync", concurrency=1)]


def of(tenant: str, count: int, task_type: str = "echo", **more: Any) -> list[Submission]:
    return [submission(task_type, tenant=tenant, **more) for _ in range(count)]


async def marked(redis: Redis, task_type: str = "echo") -> bool:
    return bool(await redis.llen(keys.wake(0, "default", task_type)))


async def take_marker(redis: Redis, task_type: str = "echo") -> None:
    """As a supervisor does that blocks on it."""
    await redis.lpop(keys.wake(0, "default", task_type))


ENDS = ("finish", "retry", "hand_back", "cancel", "reap")


async def let_go(end: str, task: Claimed, store: Store, holder: Hand, other: Hand) -> None:
    """The holder's run of the task ends in one of the ways in which runs end."""
    match end:
        case "finish":
            await holder.finish(task)
        case "retry":
            await holder.finish(task, "retry", retry_delay_ms=1000)
        case "hand_back":
            await holder.hand_back(task)
        case "cancel":
            await store.cancel(task.id)
            await holder.hand_back(task)
        case "reap":
            await other.reap(holder)


def tenants(tasks: list[Claimed]) -> list[str]:
    return [task.spec.tenant for task in tasks]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
async def test_a_newcomer_is_next_however_many_wait_before_it(store: Store, w1: Hand, names: tuple[str, str]) -> None:
    flood, newcomer = names
    await submit(store, *of(flood, 50))
    await w1.claim(sync=7)
    await submit(store, *of(newcomer, 2))
    assert tenants(await w1.claim(sync=4)) == [newcomer, flood, newcomer, flood]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
async def test_a_tenant_that_comes_back_for_each_task_does_not_starve_the_others(
    store: Store, w1: Hand, names: tuple[str, str]
) -> None:
    """It has one task waiting whenever a slot becomes free, but none in between."""
    flood, other = names
    await submit(store, *of(flood, 30))
    taken = []
    for _ in range(20):
        await submit(store, *of(other, 1))
        while (await w1.claim_one()).spec.tenant == flood:
            taken.append(flood)
        taken.append(other)
    assert 19 <= taken.count(flood) <= 21, taken


@pytest.mark.parametrize("names", [("echo", "other"), ("other", "echo")])
async def test_a_type_that_comes_back_for_each_task_does_not_starve_the_others(
    store: Store, w1: Hand, names: tuple[str, str]
) -> None:
    flood, other = names
    await submit(store, *of("a", 30, flood))
    taken = []
    for _ in range(20):
        await submit(store, *of("a", 1, other))
        while (await w1.claim_one()).spec.type == flood:
            taken.append(flood)
        taken.append(other)
    assert 19 <= taken.count(flood) <= 21, taken


async def test_newcomers_without_end_do_not_starve_who_waits(store: Store, w1: Hand) -> None:
    await submit(store, *of("m", 20))
    await w1.claim(sync=3)
    await submit(store, *of("z", 1))
    for n in range(5):
        await submit(store, *of(f"a{n}", 1))
    seen = []
    for n in range(80):  # each of another name, which comes before all others
        await submit(store, *of(f"a{n + 5}", 1))
        seen.append((await w1.claim_one()).spec.tenant)
    assert "z" in seen[:8]
    assert "m" in seen[:60], "eight times all that were there at a time"


@pytest.mark.parametrize(
    ("weights", "turns"),
    [((3.0, 1.0), (30, 10)), ((0.5, 0.25), (27, 13)), ((1.0, 0.01), (40, 0)), ((1.0, 1.0), (20, 20))],
)
async def test_tenants_get_what_their_weights_say(
    store: Store, w1: Hand, weights: tuple[float, float], turns: tuple[int, int]
) -> None:
    said = shares({"a": Share(weights[0]), "b": Share(weights[1])})
    await submit(store, *of("a", 60), *of("b", 60))
    taken = tenants([task for _ in range(8) for task in await w1.claim(sync=5, shares=said)])
    assert all(abs(taken.count(name) - wanted) <= 1 for name, wanted in zip("ab", turns, strict=True)), taken


async def test_others_weigh_what_is_said_of_others(store: Store, w1: Hand) -> None:
    said = shares({"a": Share(4.0)}, others=Share(2.0))
    await submit(store, *of("a", 30), *of("b", 30), *of("c", 30))
    taken = tenants(await w1.claim(sync=40, shares=said))
    assert [abs(taken.count(name) - wanted) <= 1 for name, wanted in zip("abc", (20, 10, 10), strict=True)]


async def test_a_tenant_runs_no_more_than_it_may_over_all_types_and_queues(store: Store, w1: Hand, w2: Hand) -> None:
    said = shares({"a": Share(concurrency=3)})
    served = [*SERVED, Served("second", "echo", "sync")]
    await submit(store, *of("a", 5), *of("a", 5, "get"), *of("a", 5, queue="second"), *of("b", 3))
    held = await w1.claim(sync=2, served=served, shares=said)
    held += await w2.claim(sync=9, free_async=9, served=served, shares=said)
    assert tenants(held).count("a") == 3
    assert tenants(held).count("b") == 3
    assert await w1.claim(sync=9, free_async=9, served=served, shares=said) == []


@pytest.mark.parametrize("served", [TWO_QUEUES, TWO_QUEUES[::-1]])
async def test_queues_take_turns_however_many_wait_or_expire(
    store: Store, w1: Hand, clock: Clock, served: list[Served]
) -> None:
    await submit(store, *of("a", 30), *of("a", 9, queue="second", deadline_ms=9), *of("b", 30, queue="second"))
    clock.advance(10)
    queues = [task.spec.queue for task in await w1.claim(sync=10, free_async=5, served=served)]
    assert queues == [served[n % 2].queue for n in range(10)]


async def test_a_queue_with_less_than_its_turns_leaves_them_to_the_others(store: Store, w1: Hand) -> None:
    await submit(store, *of("a", 30), *of("a", 2, queue="second"))
    queues = [task.spec.queue for task in await w1.claim(sync=10, served=TWO_QUEUES)]
    assert queues.count("default") == 8


async def test_queues_take_turns_for_each_kind_of_slots_by_itself(store: Store, w1: Hand) -> None:
    served = [*SERVED, *(each._replace(queue="second") for each in SERVED)]
    for queue in ("default", "second"):
        await submit(store, *of("a", 9, queue=queue), *of("a", 9, "get", queue=queue))
    taken = [(t.spec.type, t.spec.queue) for t in await w1.claim(sync=4, free_async=6, served=served)]
    assert Counter(taken) == {
        (task_type, queue): count for task_type, count in (("echo", 2), ("get", 3)) for queue in ("default", "second")
    }


async def test_a_tenant_runs_no_more_than_it_may_where_it_waits_in_several_lanes(store: Store, w1: Hand) -> None:
    said = shares({"a": Share(concurrency=3)})
    await submit(store, *of("a", 9), *of("a", 9, "other"), *of("a", 9, queue="second"))
    served = [*SERVED, Served("second", "echo", "sync")]
    assert len(await w1.claim(sync=20, served=served, shares=said)) == 3


@pytest.mark.parametrize("end", ENDS)
async def test_whoever_ends_a_task_of_a_tenant_at_its_limit_lets_the_next_be_claimed(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis, end: str
) -> None:
    said = shares({}, others=Share(concurrency=1))
    await submit(store, *of("a", 3))
    [task] = await w1.claim(sync=9, shares=said)
    assert not await marked(redis_client)
    await submit(store, *of("a", 1))
    assert not await marked(redis_client), "there is nothing to take yet"
    await let_go(end, task, store, w1, w2)
    assert await marked(redis_client)
    assert len(await w2.claim(sync=9, shares=said)) == 1


@pytest.mark.parametrize("end", ENDS)
async def test_whoever_ends_a_task_of_a_type_at_its_limit_wakes_who_serves_it(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis, end: str
) -> None:
    await submit(store, *of("a", 3, "other"), *of("b", 3, "other"))
    [task] = await w1.claim(sync=9, served=ONE_OTHER)
    await submit(store, *of("c", 1, "other"))
    assert not await marked(redis_client, "other"), "there is nothing to take yet"
    assert await w2.claim(sync=9, served=ONE_OTHER) == []
    assert not await marked(redis_client, "other")
    await let_go(end, task, store, w1, w2)
    assert await marked(redis_client, "other")
    assert len(await w2.claim(sync=9, served=ONE_OTHER)) == 1


async def test_a_task_that_ends_and_submits_one_of_its_own_type_at_its_limit_wakes_who_serves_it(
    store: Store, w1: Hand, redis_client: Redis
) -> None:
    await submit(store, *of("a", 2, "other"))
    [task] = await w1.claim(sync=9, served=ONE_OTHER)
    await w1.finish(task, submitted=of("a", 1, "other"))
    assert await marked(redis_client, "other")


async def test_suspects_count_with_their_type(store: Store, w1: Hand) -> None:
    served = [Served("default", "get", "async", concurrency=1)]
    await submit(store, *of("a", 2, "get"))
    [task] = await w1.claim(sync=0, free_async=9, served=served)
    await w1.hand_back(task, reason="suspect")
    assert len(await w1.claim(sync=0, free_async=9, free_alone=9, served=served)) == 1
    assert await w1.claim(sync=0, free_async=9, free_alone=9, served=served) == []


async def test_a_type_at_its_limit_gains_nothing_by_having_waited(store: Store, w1: Hand) -> None:
    """Else it would have all slots to itself for a while when its limit is raised."""
    await submit(store, *of("a", 30, "other"), *of("a", 60))
    held = await w1.claim(sync=20, served=ONE_OTHER)
    assert [task.spec.type for task in held].count("other") == 1
    await w1.finish(next(task for task in held if task.spec.type == "other"))
    types = [task.spec.type for task in await w1.claim(sync=10)]
    assert types.count("other") in (5, 6)


async def test_a_tenant_gains_nothing_by_being_at_its_limit(store: Store, w1: Hand) -> None:
    said = shares({"a": Share(concurrency=1)})
    await submit(store, *of("a", 30), *of("b", 60))
    held = await w1.claim(sync=20, shares=said)
    assert tenants(held).count("a") == 1
    await w1.finish(next(task for task in held if task.spec.tenant == "a"))
    taken = tenants(await w1.claim(sync=10))
    assert taken.count("a") in (5, 6)


async def test_a_tenant_below_its_weight_owes_it_when_it_comes_back_from_its_limit(store: Store, w1: Hand) -> None:
    said = shares({"a": Share(weight=0.1, concurrency=1)})
    await submit(store, *of("a", 9), *of("b", 30))
    first = await w1.claim(sync=2, shares=said)
    assert sorted(tenants(first)) == ["a", "b"]
    await w1.finish(next(task for task in first if task.spec.tenant == "a"))
    assert tenants(await w1.claim(sync=8, shares=said)) == ["b"] * 8


@pytest.mark.parametrize("raised", ["", shares({"a": Share(concurrency=2)})])
async def test_a_raised_limit_of_a_tenant_is_seen_by_the_next_beat(
    store: Store, w1: Hand, redis_client: Redis, raised: str
) -> None:
    said = shares({"a": Share(concurrency=1)})
    await submit(store, *of("a", 3))
    [task] = await w1.claim(sync=9, shares=said)
    assert not (await w1.beat(task, shares=said)).claimable
    assert not await marked(redis_client)

    assert (await w1.beat(task, shares=raised)).claimable
    assert await marked(redis_client)
    assert len(await w1.claim(sync=9, shares=raised)) == (1 if raised else 2)


@pytest.mark.parametrize("limit", [0, 2])
async def test_a_raised_limit_of_a_type_is_seen_by_the_next_beat(
    store: Store, w1: Hand, redis_client: Redis, limit: int
) -> None:
    await submit(store, *of("a", 4, "other"))
    [task] = await w1.claim(sync=9, served=ONE_OTHER)
    await w1.beat(task, served=ONE_OTHER)
    await submit(store, *of("b", 1, "other"))
    assert not await marked(redis_client, "other")

    raised = [Served("default", "other", "sync", concurrency=limit)]
    assert (await w1.beat(task, served=raised)).claimable
    assert await marked(redis_client, "other")
    assert len(await w1.claim(sync=9, served=raised)) == (limit - 1 if limit else 4)


async def test_a_lowered_limit_stops_no_task_and_holds_for_the_next(store: Store, w1: Hand) -> None:
    await submit(store, *of("a", 9))
    held = await w1.claim(sync=4)
    lower = shares({"a": Share(concurrency=2)})
    assert await w1.claim(sync=9, shares=lower) == []
    for task in held[:3]:
        await w1.finish(task)
    assert len(await w1.claim(sync=9, shares=lower)) == 1


async def test_nothing_is_left_of_a_tenant_at_its_limit_whose_tasks_are_canceled(store: Store, w1: Hand) -> None:
    said = shares({}, others=Share(concurrency=1))
    ids = await submit(store, *of("a", 3))
    [task] = await w1.claim(sync=9, shares=said)
    for task_id in ids:
        if task_id != task.id:
            await store.cancel(task_id)
    await w1.finish(task)


async def test_each_partition_has_its_part_of_a_limit_rounded_up() -> None:
    assert shares({"a": Share(2.0, 5)}, partitions=2) == "\n* 1.0 0\na 2.0 3"
    assert shares({"a": Share()}, others=Share()) == ""


@pytest.mark.parametrize("names", [("fresh", "echo"), ("zfresh", "echo")])
async def test_fresh_and_other_sync_types_take_turns(store: Store, w1: Hand, names: tuple[str, str]) -> None:
    """Neither may take all slots: not the one whose processes are scarce, nor the one that is always ready."""
    fresh, other = names
    served = [Served("default", other, "sync"), Served("default", fresh, "fresh")]
    await submit(store, *of("a", 30, other), *of("a", 30, fresh))
    for _ in range(3):
        tasks = await w1.claim(sync=1, served=served, free_fresh=0)
        assert [task.spec.type for task in tasks] == [other]
        assert tasks.fresh_waits
    types = [task.spec.type for _ in range(10) for task in await w1.claim(sync=1, served=served, free_fresh=1)]
    assert types[0] == fresh
    assert types.count(fresh) in (5, 6)


async def test_a_fresh_process_takes_the_slots_of_its_child(store: Store, w1: Hand) -> None:
    served = [Served("default", "echo", "sync"), Served("default", "fresh", "fresh")]
    await submit(store, *of("a", 30), *of("a", 3, "fresh"))
    tasks = await w1.claim(sync=20, served=served, free_fresh=1, fresh_takes=10)
    types = [task.spec.type for task in tasks]
    assert (types.count("fresh"), types.count("echo")) == (1, 10)
    assert tasks.fresh_waits
    assert (await w1.claim(sync=2, served=served, free_fresh=0)).fresh_waits
    assert not (await w1.claim(sync=6, served=served, free_fresh=2)).fresh_waits


async def test_types_of_suspects_take_turns(store: Store, w1: Hand) -> None:
    """A flood of one that kills its processes does not keep another's suspects from running."""
    served = [Served("default", "get", "async"), Served("default", "put", "async")]
    await submit(store, *of("a", 8, "get"), *of("a", 2, "put"))
    for task in await w1.claim(sync=0, free_async=20, served=served):
        await w1.hand_back(task, reason="suspect")
    types = [t.spec.type for _ in range(4) for t in await w1.claim(sync=0, free_alone=1, served=served)]
    assert types.count("put") == 2


async def test_equal_scores_go_on_in_their_order_when_they_come_back(store: Store, w1: Hand) -> None:
    ids = await submit(store, *of("a", 6))
    for task in await w1.claim(sync=4):
        await w1.hand_back(task)
    assert [task.id for task in await w1.claim(sync=6)] == ids

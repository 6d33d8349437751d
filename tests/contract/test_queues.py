"""queues: what stands where, by type and tenant, within bounds."""

from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import QueueLook, Served
from taskgate.contract.shares import Share
from taskgate.contract.shares import shares as contract_shares
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import Hand, submission, submit

NOTHING = QueueLook(dead=0, oldest_ms=None, oldest_sure=True, beyond={}, ready=[])


async def test_of_a_queue_that_nobody_used_there_is_nothing(store: Store, clock: Clock) -> None:
    assert await store.queues(0, ["none"], sought=["a"], limit=9) == (clock.now, {"none": NOTHING})
    assert await store.queues(0, []) == (clock.now, {})


async def test_ready_tasks_are_counted_by_type_and_tenant(store: Store, w1: Hand, clock: Clock) -> None:
    began = clock.now
    await submit(store, submission(tenant="a", priority=0))
    clock.advance(1000)
    await submit(store, *(submission(tenant=each) for each in "ab"), submission("other", tenant="a"))
    await submit(store, submission(delay_ms=60_000), submission(queue="second"))
    _, found = await store.queues(0, ["default", "second"], limit=100)
    assert found["default"].beyond == {"echo": 0, "other": 0}
    assert sorted(found["default"].ready) == [("echo", "a", 2), ("echo", "b", 1), ("other", "a", 1)]
    assert (found["default"].oldest_ms, found["default"].oldest_sure) == (began, True), "whatever its priority"
    assert found["second"].ready == [("echo", "default", 1)]
    await w1.claim(1)
    await w1.claim(1)
    assert (await store.queues(0, ["default"], limit=100))[1]["default"].oldest_ms in (began, clock.now)


async def test_the_oldest_is_looked_for_within_a_bound_and_it_is_said_where_that_cuts(
    store: Store, redis_client: Redis, clock: Clock
) -> None:
    began = clock.now
    await submit(store, submission(priority=0))
    clock.advance(1000)
    await submit(store, *(submission(priority=9) for _ in range(98)))
    clock.advance(1000)
    [found] = (await store.queues(0, ["default"], limit=9))[1].values()
    assert (found.oldest_ms, found.oldest_sure) == (began, True)
    await submit(store, *(submission(priority=9) for _ in range(100)), *(submission(priority=8) for _ in range(100)))
    await redis_client.config_resetstat()
    [found] = (await store.queues(0, ["default"], limit=9))[1].values()
    assert (found.oldest_ms, found.oldest_sure) == (began + 1000, False)
    assert (await redis_client.info("commandstats"))["cmdstat_hget"]["calls"] <= 1 + 100


async def test_it_is_said_where_an_older_one_waits_for_a_key_or_was_not_looked_at(
    store: Store, w1: Hand, clock: Clock
) -> None:
    await submit(store, *(submission(concurrency_key="k", tenant=f"t{n % 2}") for n in range(4)))
    [found] = (await store.queues(0, ["default"], limit=9))[1].values()
    assert (found.oldest_ms, found.oldest_sure) == (clock.now, False)
    await submit(store, *(submission(queue="crowd", tenant=f"t{n}") for n in range(3)))
    await submit(store, submission(queue="later", delay_ms=1000), submission(queue="later"))
    _, found_in = await store.queues(0, ["crowd", "later"], limit=4)
    assert [found_in[name].oldest_sure for name in ("crowd", "later")] == [False, True]


async def test_dead_letters_are_counted(store: Store, w1: Hand) -> None:
    await submit(store)
    await w1.finish(await w1.claim_one(), "failed")
    assert (await store.queues(0, ["default"]))[1]["default"] == NOTHING._replace(dead=1)


async def test_tenants_beyond_the_limit_are_counted_and_those_sought_come_first(store: Store) -> None:
    await submit(store, *(submission(tenant=f"t{n}") for n in range(20)), submission("other", tenant="t7"))
    _, found = await store.queues(0, ["default"], sought=["t7", "absent", "t9"], limit=6)
    ready, beyond = found["default"].ready, found["default"].beyond
    assert {("echo", "t7", 1), ("echo", "t9", 1), ("other", "t7", 1)} <= set(ready)
    assert len(ready) == len(set(ready)) == 3 + 1
    assert beyond == {"echo": 17, "other": 0}
    alone = (await store.queues(0, ["default"], sought=["t7"]))[1]["default"]
    assert sorted(alone.ready) == [("echo", "t7", 1), ("other", "t7", 1)]
    assert alone.beyond == {"echo": 19, "other": 0}


async def test_a_look_changes_nothing_and_is_bounded(store: Store, redis_client: Redis) -> None:
    """However many tenants and queues there are."""
    tenants = [f"t{n}" for n in range(300)]
    await submit(store, *(submission(tenant=each, queue=f"q{n % 3}") for n, each in enumerate(tenants)))
    names = [f"q{n}" for n in range(3)]
    before = await redis_client.hgetall(keys.usage(0))
    await redis_client.config_resetstat()
    await store.queues(0, names, sought=tenants[:100], limit=60)
    calls = {name: stat["calls"] for name, stat in (await redis_client.info("commandstats")).items()}
    assert calls["cmdstat_zcard"] == 3 * 2 + 60
    assert calls["cmdstat_zrange"] == 3 * 2 + 60
    assert calls["cmdstat_zmscore"] == 3
    assert await redis_client.hgetall(keys.usage(0)) == before


async def test_usage_is_whole_however_many_tenants_there_are(store: Store, redis_client: Redis) -> None:
    for n in range(0, 900, 100):
        await submit(store, *(submission(tenant=f"t{m}") for m in range(n, n + 100)))
    usage = await store.usage(0)
    assert len(usage) == await redis_client.hlen(keys.usage(0))
    assert sum(name.startswith("waiting:tenant:") for name in usage) == 900


async def test_tenants_at_their_limit_are_found_where_they_have_left(store: Store, w1: Hand) -> None:
    shares = contract_shares({"a": Share(concurrency=1)})
    await submit(store, *(submission(tenant=each) for each in "aab"), submission(tenant="a", queue="second"))
    served = [Served(queue, "echo", "sync") for queue in ("default", "second")]
    assert len(await w1.claim(5, served=served, shares=shares)) == 2
    for sought, limit in ((["a"], 0), ([], 9)):
        _, found = await store.queues(0, ["default", "second"], sought=sought, limit=limit)
        assert (found["default"].ready, found["default"].beyond) == ([("echo", "a", 1)], {})
        assert found["second"].ready == [("echo", "a", 1)]
    assert (await store.queues(0, ["default"]))[1]["default"].ready == []


async def test_what_waits_for_its_concurrency_key_is_not_ready(store: Store, w1: Hand) -> None:
    await submit(store, *(submission(concurrency_key="k") for _ in range(3)))
    _, found = await store.queues(0, ["default"], limit=9)
    assert found["default"].ready == [("echo", "default", 1)]
    assert (await store.usage(0))["waiting:queue:default"] == 3

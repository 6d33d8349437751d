"""read: snapshots without payloads; the lists and looks that need no script."""

import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.errors import NotFinished, StoreUnavailable, TaskNotFound
from taskgate.contract.models import Served, TypeInfo
from taskgate.contract.shares import Share, shares
from taskgate.contract.states import Health, Status
from taskgate.contract.store import Store
from tests.conftest import Clock, Server, dead_letters
from tests.contract.conftest import LEASE_MS, Hand, read, submission, submit
from tests.contract.invariants import everything


async def test_a_new_task_reads_as_it_was_submitted(store: Store, clock: Clock) -> None:
    item = submission(
        tenant="a", priority=7, timeout_s=2.5, max_attempts=9, metadata=msgspec.Raw(b'{"a":1}'), deadline_ms=500
    )
    await submit(store, item)
    record = await read(store, item.id)
    assert (record.id, record.spec.tenant, record.spec.priority, record.spec.timeout_s) == (item.id, "a", 7, 2.5)
    assert record.spec.metadata == msgspec.Raw(b'{"a":1}')
    assert (record.created_ms, record.now_ms, record.deadline_ms) == (clock.now, clock.now, clock.now + 500)
    assert (record.started_ms, record.finished_ms, record.purge_ms, record.epoch) == (0, 0, 0, 0)
    assert (record.worker, record.progress, record.effort, record.error) == ("", b"", b"", b"")
    assert (record.alive_ms, record.lease_ms, record.has_result, record.result) == (None, 0, False, None)


async def test_many_are_read_in_order_with_gaps(store: Store) -> None:
    first, second = await submit(store, submission(), submission())
    records = await store.read([second, submission().id, first])
    assert [record and record.id for record in records] == [second, None, first]


async def test_reading_changes_nothing(store: Store, w1: Hand, redis_client: Redis) -> None:
    [task_id] = await submit(store)
    await w1.claim_one()
    before = await everything(redis_client)
    await store.read([task_id], result=True)
    await store.events(task_id)
    assert await everything(redis_client) == before


async def test_the_position_counts_what_waits_before(store: Store, w1: Hand) -> None:
    ids = await submit(store, *(submission() for _ in range(3)))
    assert [record.position for record in await store.read(ids) if record] == [0, 1, 2]
    await w1.claim_one()
    assert [record.position for record in await store.read(ids) if record] == [None, 0, 1]


@pytest.mark.parametrize("cancel", [False, True])
async def test_what_runs_without_liveness_key_is_lost_and_stays_as_it_is(
    store: Store, w1: Hand, clock: Clock, redis_client: Redis, cancel: bool
) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    await w1.beat(task)
    await w1.report(task, health="computing")
    clock.advance(LEASE_MS + 1)
    if cancel:
        await store.cancel(task_id)
    assert (await read(store, task_id)).seen_health() == Health.COMPUTING
    await redis_client.delete(keys.alive(0, task_id))

    record = await read(store, task_id)
    assert record.seen_health() is Health.LOST
    assert record.status is (Status.CANCELING if cancel else Status.RUNNING)
    await w1.beat(task)
    assert (await read(store, task_id)).seen_health() == Health.COMPUTING


async def test_a_claim_stands_for_the_first_beat_for_one_lease(store: Store, w1: Hand, clock: Clock) -> None:
    [task_id] = await submit(store)
    await w1.claim_one()
    clock.advance(LEASE_MS - 1)
    assert (await read(store, task_id)).alive_ms == 1
    clock.advance(2)
    assert (await read(store, task_id)).seen_health() is Health.LOST


async def test_the_result_is_read_only_where_asked(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    await w1.finish(await w1.claim_one(), result=b"[1]")
    assert ((await read(store, task_id)).has_result, (await read(store, task_id)).result) == (True, None)
    [record] = await store.read([task_id], result=True)
    assert record is not None
    assert record.result == b"[1]"


async def test_a_result_is_there_once_the_task_has_ended(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    with pytest.raises(TaskNotFound):
        await store.result(submission().id)
    with pytest.raises(NotFinished, match="queued"):
        await store.result(task_id)
    await w1.finish(await w1.claim_one(), "failed")
    assert await store.result(task_id) == (Status.FAILED, b"")


async def test_a_queued_task_says_which_limit_keeps_it(store: Store, w1: Hand) -> None:
    first, second = await submit(store, submission(concurrency_key="k"), submission(concurrency_key="k"))
    [free] = await submit(store, submission(tenant="z"))
    keyed = await read(store, second)
    assert (keyed.status, keyed.barred, keyed.position) == (Status.QUEUED, "key", None)
    assert [(each.barred, each.position) for each in (await read(store, first), await read(store, free))] == [
        ("", 0)
    ] * 2

    limited = [Served("default", "echo", "sync", 1)]
    running = await w1.claim_one(served=limited)
    assert running.id == first
    assert (await read(store, free)).barred == "type"
    assert (await read(store, first)).barred == "", "it runs"
    await w1.finish(running)
    assert [(await read(store, each)).barred for each in (second, free)] == ["", ""]

    [waits] = await submit(store, submission(tenant="z"))
    assert len(await w1.claim(4, shares=shares({"z": Share(concurrency=1)}))) == 2
    kept = await read(store, waits)
    assert (kept.barred, kept.position) == ("tenant", 0)


async def test_events_are_read_after_an_id(store: Store, w1: Hand) -> None:
    [task_id] = await submit(store)
    task = await w1.claim_one()
    await w1.report(task, events=[("custom", b"{}")] * 3)
    everything_told = await store.events(task_id)

    assert await store.events(task_id, after=everything_told[1].id) == everything_told[2:]
    assert await store.events(task_id, count=2) == everything_told[:2]
    assert await store.kept_events([task_id]) == [(everything_told[-1].id, None)]
    assert await store.has_event(task_id, everything_told[0].id)
    assert not await store.has_event(task_id, "1-1")
    assert await store.kept_events([submission().id]) == [(None, None)]


@pytest.mark.parametrize("protocol", [2, 3])
async def test_both_protocols_read_alike(redis_url: str, clock: Clock, protocol: int) -> None:
    async with Redis.from_url(redis_url, protocol=protocol) as client:
        store = Store(client, clock=clock)
        hand = Hand(store, "w1")
        await hand.beat()
        [task_id] = await submit(store)
        await hand.finish(await hand.claim_one(), "failed")
        assert [event.name for event in await store.events(task_id)] == ["status", "status"]
        assert await dead_letters(store) == [task_id]
        assert [info.id for info in await store.workers()] == ["w1"]
        assert (await store.usage(0))["drain_n:default"] == 1
        assert await store.server_config("maxmemory") == {"maxmemory": "0"}


async def test_types_are_announced_under_name_and_schema(store: Store) -> None:
    def info(schema_hash: str, description: str = "") -> TypeInfo:
        return TypeInfo(
            type="echo",
            schema_hash=schema_hash,
            kind="sync",
            queue="default",
            schema=msgspec.Raw(b"{}"),
            timeout_s=1,
            max_attempts=3,
            description=description,
        )

    await store.announce([])
    await store.announce([info("aa"), info("bb")])
    await store.announce([info("bb", "newer")])
    assert {(each.schema_hash, each.description) for each in await store.types()} == {("aa", ""), ("bb", "newer")}


async def test_a_marker_ends_the_wait_and_is_taken(store: Store, redis_client: Redis) -> None:
    marks = [(0, Served("default", "echo", "sync")), (0, Served("default", "other", "sync"))]
    assert await store.wait_for_work(marks, worker_id="w1", timeout_s=0.01) is None
    [task_id] = await submit(store, submission("other"))
    assert await store.wait_for_work(marks, worker_id="w1", timeout_s=5) == 0
    assert not await redis_client.exists(keys.wake(0, "default", "other"))
    await store.cancel(task_id)


async def test_a_nudge_ends_the_wait_without_work(store: Store) -> None:
    await store.nudge("w1")
    assert await store.wait_for_work([(0, Served("default", "echo", "sync"))], worker_id="w1", timeout_s=60) is None


async def test_a_probe_is_a_write(store: Store, redis_client: Redis) -> None:
    await store.probe()
    assert 0 < await redis_client.pttl("tg:{0}:probe") <= 60_000
    await redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable):
            await store.probe()
    finally:
        await redis_client.config_set("maxmemory", 0)


async def test_reads_say_so_when_redis_is_away(own_server: Server) -> None:
    async with Redis.from_url(own_server.url) as client:
        store = Store(client)
        await store.probe()
        own_server.stop()
        with pytest.raises(StoreUnavailable):
            await store.probe()
        with pytest.raises(StoreUnavailable):
            await store.read([submission().id])


async def test_the_clock_is_that_of_redis(redis_client: Redis) -> None:
    store = Store(redis_client)
    before = await store.now_ms()
    [task_id] = await submit(store)
    assert before <= (await read(store, task_id)).created_ms <= await store.now_ms()

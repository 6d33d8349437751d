"""unserved, fail_unserved: a type that no live supervisor serves; queued -> failed."""

import json

import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract.models import Served
from taskgate.contract.script import BATCH
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock, dead_letters
from tests.contract.conftest import LIMITS, Hand, read, submission, submit, worker_info
from tests.contract.invariants import everything

GET = Served("default", "get", "async")


async def serves(store: Store, worker_id: str, *types: str, queues: tuple[str, ...] = ("default",)) -> None:
    """A beat of a supervisor that says what it serves."""
    info = msgspec.structs.replace(
        worker_info(worker_id), types=[f"{name}:0123abcd" for name in types], queues=list(queues)
    )
    await store.beat(0, info, held=[], served=[])


async def fail(store: Store, worker_id: str = "w1", *, queue: str = "default", task_type: str = "echo") -> int | None:
    return await store.fail_unserved(0, worker_id, queue=queue, task_type=task_type, after_s=60)


async def test_a_lane_is_unserved_when_no_supervisor_serves_type_and_queue(store: Store) -> None:
    await serves(store, "w1", "get")
    await serves(store, "w2", "other", queues=("default", "second"))
    await submit(store, submission("echo"), submission("get"), submission("other"), submission("get", queue="second"))
    assert sorted(await store.unserved(0, [GET])) == [("default", "echo"), ("second", "get")]
    await serves(store, "w2", "other", "echo", queues=("default", "second"))
    assert await store.unserved(0, [GET]) == [("second", "get")]


async def test_only_what_is_queued_counts(store: Store, clock: Clock) -> None:
    await serves(store, "w1")
    [later] = await submit(store, submission(delay_ms=1000))
    assert await store.unserved(0, []) == []
    clock.advance(1000)
    await store.promote(0)
    assert await store.unserved(0, []) == [("default", "echo")]
    await store.cancel(later)
    assert await store.unserved(0, []) == []


async def test_its_tasks_become_dead_letters_and_no_attempt_counts(store: Store, clock: Clock) -> None:
    await serves(store, "w1", "get")
    ids = await submit(store, submission(tenant="a"), submission(tenant="b", deadline_ms=99_000))
    served, scheduled = await submit(store, submission("get"), submission(delay_ms=1000))
    clock.advance(5)

    assert await fail(store) == 2
    for record in [await read(store, task_id) for task_id in ids]:
        assert (record.status, record.version, record.attempt) == (Status.FAILED, 2, 0)
        assert json.loads(record.error) == {
            "kind": "unknown_type",
            "message": "no live supervisor has served task type echo in queue default for 60 s",
        }
        assert record.finished_ms == clock.now
        assert record.purge_ms == clock.now + 604_800_000
        [event] = await store.events(record.id)
        told = json.loads(event.data)
        assert (told["status"], told["attempt"], told["error"]["kind"]) == ("failed", 0, "unknown_type")
    assert await dead_letters(store, "a") + await dead_letters(store, "b") == ids
    assert (await read(store, served)).status is Status.QUEUED
    assert (await read(store, scheduled)).status is Status.SCHEDULED


async def test_a_redrive_gives_it_another_chance(store: Store) -> None:
    await serves(store, "w1", "get")
    [task_id] = await submit(store)
    await fail(store)
    await store.redrive(task_id, request_id="r", limits=LIMITS)
    assert (await read(store, task_id)).error == b""
    hand = Hand(store, "w2")
    await hand.beat()
    task = await hand.claim_one()
    assert (task.id, task.attempt, await hand.finish(task)) == (task_id, 1, "succeeded")


@pytest.mark.parametrize("types", [("get", "echo"), ("echo",)])
async def test_a_lane_that_somebody_serves_again_is_left_alone(
    store: Store, redis_client: Redis, types: tuple[str, ...]
) -> None:
    await serves(store, "w1", "get")
    await serves(store, "w2", *types)
    await submit(store)
    before = await everything(redis_client)
    assert await fail(store) is None
    assert await everything(redis_client) == before


async def test_a_supervisor_that_does_not_live_fails_nothing(store: Store, redis_client: Redis) -> None:
    await serves(store, "w1", "get")
    await submit(store)
    before = await everything(redis_client)
    assert await fail(store, "w9") is None
    assert await everything(redis_client) == before


async def test_a_call_fails_a_bounded_number_over_all_tenants(store: Store) -> None:
    await serves(store, "w1", "get")
    await submit(store, *(submission(tenant=f"t{n % 3}") for n in range(BATCH + 2)))
    assert await fail(store) == BATCH
    assert await fail(store) == 2
    assert await fail(store) == 0


async def test_a_repeat_after_a_lost_reply_has_no_second_effect(store: Store, redis_client: Redis) -> None:
    await serves(store, "w1", "get")
    await submit(store, submission(), submission())
    await fail(store)
    before = await everything(redis_client)
    assert await fail(store) == 0
    assert await everything(redis_client) == before

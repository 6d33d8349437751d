"""Turns of queues and partitions: nobody waits for ever, whatever the order in which slots become free."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Claimed, Served
from taskgate.contract.store import Store
from tests.conftest import Server
from tests.contract.conftest import submission, submit, worker_info
from workers.claims import Claims, Room
from workers.guard_client import GuardClient
from workers.lease import Lease
from workers.slot import boot_ns

QUEUES = ("a", "second")
SERVED = [Served(queue, name, kind) for queue in QUEUES for name, kind in (("echo", "sync"), ("get", "async"))]
PARTITIONS = 3


class Slots:
    """One slot becomes free at a time; what is claimed for it is kept."""

    def __init__(self) -> None:
        self.free = {"sync": 0, "async": 0}
        self.tasks: list[Claimed] = []

    def room(self) -> Room:
        return Room(self.free["sync"], 0, self.free["async"], 0)

    def take(self, tasks: object, _deadline_ns: int) -> None:
        assert isinstance(tasks, list)
        for task in tasks:
            self.free["sync" if task.spec.type == "echo" else "async"] -= 1
            self.tasks.append(task)


@pytest.fixture
async def slots() -> Slots:
    return Slots()


@pytest.fixture
async def store(own_server: Server) -> AsyncIterator[Store]:
    async with Redis.from_url(own_server.url, protocol=2) as client:
        store = Store(client, partitions=PARTITIONS)
        await asyncio.gather(*(store.beat(n, worker_info("w1"), held=[], served=SERVED) for n in store.partitions))
        yield store


@pytest.fixture
async def claims(store: Store, slots: Slots) -> Claims:
    lease = Lease(60, GuardClient(pause_s=30))
    lease.answered(boot_ns())
    claims = Claims(store, store, lease, worker_id="w1", lease_ms=60_000, room=slots.room, take=slots.take)
    claims.serve(SERVED)
    return claims


async def fill(store: Store, queue: str, task_type: str, partition: int, count: int) -> None:
    items = [submission(task_type, id=new_task_id(partition), queue=queue) for _ in range(count)]
    await submit(store, *items)


async def claim(claims: Claims, slots: Slots, kind: str) -> tuple[int, str]:
    """For one free slot: from which partition and queue."""
    slots.free[kind] = 1
    await claims._claim_all()
    return slots.tasks[-1].partition, slots.tasks[-1].spec.queue


async def test_every_queue_of_every_partition_has_its_turn_for_every_kind(
    claims: Claims, store: Store, slots: Slots
) -> None:
    """Kinds alternate: what one of them is given must not decide where the other begins."""
    for partition in range(PARTITIONS):
        for queue in QUEUES:
            await fill(store, queue, "echo", partition, 20)
            await fill(store, queue, "get", partition, 20)
    seen: dict[str, list[tuple[int, str]]] = {"sync": [], "async": []}
    for _ in range(2 * PARTITIONS * len(QUEUES)):
        for kind, places in seen.items():
            places.append(await claim(claims, slots, kind))
    for places in seen.values():
        assert all(places.count((n, queue)) == 2 for n in range(PARTITIONS) for queue in QUEUES), places


@pytest.mark.parametrize("partition", range(PARTITIONS))
@pytest.mark.parametrize("queue", QUEUES)
async def test_who_comes_into_a_flood_of_another_queue_or_partition_is_next_but_few(
    claims: Claims, store: Store, slots: Slots, partition: int, queue: str
) -> None:
    other = next(each for each in QUEUES if each != queue)
    for n in range(PARTITIONS):
        await fill(store, other, "echo", n, 20)
    for _ in range(5):
        await claim(claims, slots, "sync")
    await fill(store, queue, "echo", partition, 1)
    turns = [await claim(claims, slots, "sync") for _ in range(PARTITIONS)]
    assert (partition, queue) in turns


async def test_slots_that_become_free_meanwhile_are_not_all_for_one_partition(
    claims: Claims, store: Store, slots: Slots
) -> None:
    """As with tasks that are over before the claim's answer has been dealt with."""
    for n in range(PARTITIONS):
        await fill(store, "a", "echo", n, 10)

    def take(tasks: object, deadline_ns: int) -> None:
        slots.take(tasks, deadline_ns)
        slots.free["sync"] = int(len(slots.tasks) < 9)

    claims._take = take
    await claim(claims, slots, "sync")
    assert {n: sum(task.partition == n for task in slots.tasks) for n in range(PARTITIONS)} == {0: 3, 1: 3, 2: 3}

"""Claiming: what the lease and a drain forbid, and until when what was claimed may start."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Claimed
from taskgate.contract.store import Store
from tests.conftest import Server
from tests.contract.conftest import SERVED, Hand, submission, submit, worker_info
from tests.workers.conftest import until
from workers.claims import Claims, Room
from workers.guard_client import GuardClient
from workers.lease import Lease
from workers.slot import boot_ns


class Taken:
    """What was claimed, and until when it may start."""

    def __init__(self) -> None:
        self.tasks: list[Claimed] = []
        self.deadlines: list[int] = []

    def take(self, tasks: Sequence[Claimed], deadline_ns: int) -> None:
        self.tasks += tasks
        self.deadlines += [deadline_ns] * len(tasks)

    def room(self) -> Room:
        return Room(1 - len(self.tasks), 0, 0, 0)


@pytest.fixture
async def store(own_server: Server) -> AsyncIterator[Store]:
    async with Redis.from_url(own_server.url, protocol=2) as client:
        store = Store(client)
        await Hand(store, "w1").beat()
        yield store


@pytest.fixture
async def lease() -> Lease:
    lease = Lease(60, GuardClient(pause_s=30))
    lease.answered(boot_ns())
    return lease


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
async def claims(store: Store, lease: Lease, taken: Taken) -> Claims:
    claims = Claims(store, store, lease, worker_id="w1", lease_ms=60_000, room=taken.room, take=taken.take)
    claims.serve(SERVED)
    await submit(store)
    return claims


async def test_what_is_claimed_may_start_until_the_deadline_of_before_the_call(
    claims: Claims, lease: Lease, taken: Taken, own_server: Server
) -> None:
    """While its answer was on the way, the supervisor may have been reaped and have beaten again."""
    before_ns = lease.deadline_ns
    assert own_server.process
    own_server.process.send_signal(signal.SIGSTOP)
    running = asyncio.ensure_future(claims.run())
    for _ in range(50):  # enough to send it; the answer does not come by itself
        await asyncio.sleep(0)
    lease.answered(boot_ns())
    own_server.process.send_signal(signal.SIGCONT)
    await until(lambda: taken.tasks)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert taken.deadlines == [before_ns] != [lease.deadline_ns]


async def test_nothing_is_claimed_past_the_lease(claims: Claims, lease: Lease, taken: Taken) -> None:
    lease.answered(boot_ns() - 60 * 10**9)
    await claims._claim_all()
    assert taken.tasks == []
    lease.answered(boot_ns())
    await claims._claim_all()
    assert len(taken.tasks) == 1


async def test_nothing_is_claimed_once_it_has_stopped(claims: Claims, taken: Taken) -> None:
    claims.stopped = True
    await claims._claim_all()
    assert taken.tasks == []


async def test_no_more_is_claimed_than_there_is_room_for(claims: Claims, store: Store, taken: Taken) -> None:
    await submit(store)
    await claims._claim_all()
    assert len(taken.tasks) == 1


@pytest.mark.parametrize("room", [0, 1])
async def test_a_marker_taken_without_room_is_put_back_in_its_partition(
    own_server: Server, lease: Lease, taken: Taken, room: int
) -> None:
    """Also where the claim in a partition before it fills the room."""
    sizes = [1]
    async with (
        Redis.from_url(own_server.url, protocol=2) as client,
        Redis.from_url(own_server.url, protocol=2) as other,
    ):
        store = Store(client, partitions=2)
        for partition in store.partitions:
            await store.beat(partition, worker_info("w1"), held=[], served=SERVED)
        claims = Claims(
            store,
            Store(other, partitions=2),
            lease,
            worker_id="w1",
            lease_ms=60_000,
            room=lambda: Room(sizes[0] - len(taken.tasks), 0, 0, 0),
            take=taken.take,
        )
        claims.serve(SERVED)
        await claims._claim_all()  # which finds nothing, so that markers are waited for
        listening = asyncio.ensure_future(claims.listen())
        await until(lambda: claims._waiting_for)
        sizes[0] = 0
        await submit(store, submission(id=new_task_id(1)))
        await until(lambda: claims._wake.is_set() and not claims._waiting_for)
        sizes[0] = room
        if room:
            await submit(store, submission(id=new_task_id(0)))
        assert not await client.exists(keys.wake(1, "default", "echo"))
        await claims._claim_all()
        assert await client.exists(keys.wake(1, "default", "echo"))
        assert len(taken.tasks) == room
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

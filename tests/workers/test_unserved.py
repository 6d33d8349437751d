"""The watch on lanes that nobody serves: whose time is counted, and what begins it anew."""

import time
from collections.abc import Sequence

import pytest

from taskgate.contract.models import Served
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.contract.conftest import read, submission, submit
from tests.contract.test_unserved import GET, serves
from workers.guard_client import GuardClient
from workers.lease import Lease
from workers.metrics import Metrics
from workers.unserved import Unserved

AFTER_S = 40.0


class Watch:
    """An `Unserved` on a clock moved by hand."""

    def __init__(self, store: Store, *, served: Sequence[Served] = (GET,)) -> None:
        self.served = served
        self.metrics = Metrics()
        self.now_s = time.monotonic()
        lease = Lease(6.0, GuardClient(pause_s=1, on_change=lambda alive: None))
        self._unserved = Unserved(
            store, lease, worker_id="w1", after_s=AFTER_S, served=lambda: self.served, metrics=self.metrics
        )
        self.contact_lost = self._unserved.contact_lost

    async def look_for(self, seconds: int) -> None:
        """A look every 10 s."""
        for _ in range(seconds // 10):
            await self._unserved.look(self.now_s)
            self.now_s += 10
        await self._unserved.look(self.now_s)


@pytest.fixture
async def watch(store: Store) -> Watch:
    await serves(store, "w1", "get")
    return Watch(store)


async def test_a_lane_fails_when_it_was_seen_unserved_for_that_long(store: Store, watch: Watch) -> None:
    [task_id] = await submit(store)
    await watch.look_for(30)
    assert (await read(store, task_id)).status is Status.QUEUED
    await watch.look_for(10)
    assert (await read(store, task_id)).status is Status.FAILED


async def test_what_fails_so_is_counted_and_queues_that_clients_make_up_together(store: Store, watch: Watch) -> None:
    await submit(store, submission(), submission(), submission(queue="mine"))
    await watch.look_for(40)
    assert watch.metrics.finished.values == {("default", "echo", "failed"): 2, ("other", "echo", "failed"): 1}


async def test_who_comes_to_serve_it_begins_the_time_anew(store: Store, watch: Watch) -> None:
    [task_id] = await submit(store)
    await watch.look_for(30)
    await serves(store, "w2", "echo")
    await watch.look_for(10)
    await store.goodbye(0, "w2")
    await watch.look_for(30)
    assert (await read(store, task_id)).status is Status.QUEUED


async def test_a_supervisor_that_serves_nothing_yet_does_not_look(store: Store, watch: Watch) -> None:
    [task_id] = await submit(store)
    watch.served = ()
    await watch.look_for(100)
    assert (await read(store, task_id)).status is Status.QUEUED


async def test_a_lost_contact_begins_the_time_anew(store: Store, watch: Watch) -> None:
    [task_id] = await submit(store)
    await watch.look_for(30)
    watch.contact_lost()
    await watch.look_for(30)
    assert (await read(store, task_id)).status is Status.QUEUED


async def test_time_in_which_the_process_stood_still_was_not_watched(store: Store, watch: Watch) -> None:
    [task_id] = await submit(store)
    await watch.look_for(0)
    watch.now_s += 1000
    await watch.look_for(10)
    assert (await read(store, task_id)).status is Status.QUEUED
    await watch.look_for(10)
    assert (await read(store, task_id)).status is Status.FAILED


async def test_more_than_one_call_may_fail_are_failed(store: Store, watch: Watch) -> None:
    ids = await submit(store, *(submission() for _ in range(300)))
    await watch.look_for(40)
    assert {record.status for record in await store.read(ids) if record} == {Status.FAILED}

"""Streams that are cut at any byte and resumed: what the client has is what the server has."""

import asyncio
import itertools
import random
from collections.abc import Sequence

import httpx
import msgspec
import pytest

from taskgate.contract.models import Claimed
from tests.api.conftest import Served, Worker, submit
from tests.api.sse_client import Resuming
from tests.api.test_events import client
from tests.api.test_many_events import path_of

CUTS = pytest.mark.parametrize("cuts", [12, pytest.param(200, marks=(pytest.mark.full, pytest.mark.timeout(300)))])


@pytest.fixture
async def served(shared_gateway: Served, worker: Worker) -> Served:
    worker.info = msgspec.structs.replace(worker.info, lease_ms=600_000)  # nobody beats, and none is to be lost
    return await shared_gateway.started()


async def claimed(served: Served, worker: Worker, count: int) -> list[Claimed]:
    """Tasks whose streams are empty but for their start."""
    async with client(served) as http:
        for _ in range(count):
            await submit(http)
    return await worker.claim(count)


async def cut_often(stream: Resuming, worker: Worker, tasks: Sequence[Claimed], cuts: int, rng: random.Random) -> None:
    """A few events between any two connections and during each; then the ends, and the rest without a cut."""
    for number in range(cuts):
        reading = asyncio.ensure_future(stream.read(most=rng.randint(1, 2_500), idle_s=rng.uniform(0.005, 0.05)))
        for _ in range(rng.randint(0, 2)):
            task = rng.choice(tasks)
            own = [("custom", b'{"name":"own","n":%d,"text":"%s"}' % (number, b"x" * rng.randint(0, 300)))]
            await worker.report(
                task, progress=b'{"current":%d,"percent":1.0}' % number, events=own * rng.choice((0, 1, 1, 2))
            )
        await reading
    for task in tasks:
        await worker.finish(task, "failed", error=b'{"kind":"exception"}')
    while not stream.done:
        await stream.read(idle_s=60)


@CUTS
async def test_the_events_of_a_client_that_is_cut_off_are_those_of_the_server(
    served: Served, worker: Worker, cuts: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    [task] = await claimed(served, worker, 1)
    stream = Resuming(served.url, f"/tasks/{task.id}/events?after=0-0&from=now")
    first = (await worker.store.events(task.id))[0]
    stream.last_id = first.id
    await cut_often(stream, worker, [task], cuts, random.Random(seed))
    kept = await worker.store.events(task.id, count=2_000)
    had = [block.event_id for block in stream.blocks if block.event_id]
    assert had == [event.id for event in kept[1:]], "each once, in order"
    told = [block for block in stream.blocks if block.name == "custom"]
    assert [block.data["seq"] for block in told] == [event.seq for event in kept if event.name == "custom"]
    assert {block.name for block in stream.blocks} <= {"custom", "progress", "status", "end"}, "and nothing was guessed"
    assert set(stream.statuses) == {200, 204}


@CUTS
async def test_of_many_tasks_on_one_stream_nothing_is_lost_and_doubles_are_told_by_task_and_seq(
    served: Served, worker: Worker, cuts: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    tasks = await claimed(served, worker, 3)
    stream = Resuming(served.url, path_of([task.id for task in tasks]))
    await cut_often(stream, worker, tasks, cuts, random.Random(seed))
    stamps = [int(block.event_id.split("-")[0]) for block in stream.blocks if block.event_id]
    assert all(later >= earlier for earlier, later in itertools.pairwise(stamps)), "it never goes back"
    for task in tasks:
        kept = await worker.store.events(task.id, count=2_000)
        had = {
            name: {
                block.data["seq"] for block in stream.blocks if block.data["task_id"] == task.id and block.name == name
            }
            for name in ("custom", "status", "snapshot")
        }
        assert had["custom"] == {event.seq for event in kept if event.name == "custom"}
        known = max(had["snapshot"])
        assert had["status"] >= {event.seq for event in kept if event.name == "status" and event.seq > known}
        assert sum(block.name == "end" and block.data["task_id"] == task.id for block in stream.blocks) >= 1


async def test_the_reader_of_these_tests_puts_cut_chunks_together(served: Served, worker: Worker) -> None:
    """Read in pieces of one byte it has what it has when it is read at once."""
    [task] = await claimed(served, worker, 1)
    await worker.report(task, events=[("custom", b'{"name":"own","n":1}')] * 3)
    await worker.finish(task)
    whole = Resuming(served.url, f"/tasks/{task.id}/events")
    await whole.read()
    slow = Resuming(served.url, f"/tasks/{task.id}/events")
    connected = await slow.connect()
    for _ in range(400):
        await connected.read(most=1, idle_s=2)
    await connected.read()
    connected.reset()
    assert [block.name for block in whole.blocks] == ["snapshot", "custom", "custom", "custom", "end"]
    assert isinstance(whole.blocks[0].data, dict)
    assert [block.event_id for block in slow.blocks][1:] == [block.event_id for block in whole.blocks][1:]
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        done = await http.get(f"/tasks/{task.id}/events", headers={"Last-Event-ID": whole.last_id})
    assert done.status_code == 204

"""Whoever waits for Redis may be cancelled at any moment: nobody gets another's answer, no connection is lost."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop
from redis import exceptions
from redis.asyncio import Redis

from taskgate.contract.connection import Role, connect, connections
from taskgate.contract.models import Finish
from taskgate.contract.store import Store
from taskgate.settings import load
from tests.conftest import eventually
from tests.contract.conftest import LIMITS, Hand, patient, submission, submit

CALLERS = 24
"""More than a pool has connections, so that calls are cancelled while they wait for one too."""


@pytest.fixture
def server_name() -> str:
    """The client is what is tried here."""
    return "valkey"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    """As a supervisor has it: 8 connections."""
    client = connect(load({}, redis_url=redis_url), "supervisor")
    yield client
    await client.aclose()


class Caller:
    """Asks for what only its own task has, and is cancelled at random, until `budget` cancels have struck."""

    def __init__(self, client: Redis, task_id: str, budget: list[int]) -> None:
        self._store = Store(client)
        self._client = client
        self._id = task_id
        self._budget = budget
        self.seen: Counter[str] = Counter()

    async def run(self) -> None:
        calls: list[Callable[[], Awaitable[object]]] = [self._read, self._result, self._events, self._echo]
        while self._budget[0] > 0:
            call = asyncio.ensure_future(random.choice(calls)())
            for _ in range(random.choice((0, 1, 2, 3, 5, 8, 13, 40))):
                await asyncio.sleep(0)
            if random.random() < 0.2:
                await asyncio.sleep(random.random() / 1000)
            call.cancel()
            [outcome] = await asyncio.gather(call, return_exceptions=True)
            if isinstance(outcome, asyncio.CancelledError):
                self._budget[0] -= 1
            else:
                self.seen[repr(outcome)] += 1

    async def _read(self) -> bool:
        [record] = await self._store.read([self._id])
        return record is not None and record.id == self._id

    async def _result(self) -> bool:
        return await self._store.result(self._id) == ("succeeded", b'"%s"' % self._id.encode())

    async def _events(self) -> bool:
        events = await self._store.events(self._id)
        return any(self._id.encode() in event.data for event in events)

    async def _echo(self) -> bool:
        reply: bytes = await self._client.execute_command("ECHO", self._id)  # type: ignore[no-untyped-call]
        return reply == self._id.encode()


@pytest.mark.parametrize("cancels", [2000, pytest.param(100_000, marks=(pytest.mark.full, pytest.mark.timeout(900)))])
async def test_no_answer_reaches_another_caller_and_no_connection_is_lost(
    store: Store, w1: Hand, client: Redis, redis_client: Redis, cancels: int
) -> None:
    await submit(store, *(submission() for _ in range(CALLERS)))
    tasks = await w1.claim(sync=CALLERS)
    for task in tasks:
        await w1.report(task, events=[("custom", b'{"tag":"%s"}' % task.id.encode())])
    await store.finish(
        0, w1.id, [Finish(id=t.id, epoch=t.epoch, outcome="succeeded", result=b'"%s"' % t.id.encode()) for t in tasks]
    )
    budget = [cancels]
    callers = [Caller(client, task.id, budget) for task in tasks]
    await asyncio.gather(*(caller.run() for caller in callers))

    seen = sum((caller.seen for caller in callers), Counter())
    busy = ("StoreUnavailable", "OutcomeUnknown", "network:ConnectionError", "network:TimeoutError")
    wrong = [each for each in seen if each != "True" and not each.startswith(busy)]
    assert wrong == [], seen  # a busy machine may miss a timeout; nothing may get another's answer
    pool = client.connection_pool
    assert pool._in_use_connections == set()
    assert len(pool._available_connections) <= 8 == connections(load({}), "supervisor")
    ours = [each for each in await redis_client.client_list() if each["name"] == "taskgate-supervisor"]
    assert len(ours) <= len(pool._available_connections)

    async def read() -> list[object]:
        calls = [Caller(client, task.id, [0])._read() for task in tasks]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert False not in found
        return list(found)

    await eventually(read, lambda found: found == [True] * CALLERS)


async def test_a_submission_whose_caller_left_is_whole_or_not_there(store: Store, client: Redis) -> None:
    """The invariants after every test look at what is stored."""
    for turns in range(40):
        item = submission(payload=b'"x"')
        call = asyncio.ensure_future(Store(client).submit([item], LIMITS))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        [record] = await store.read([item.id])
        assert record is None or record.id == item.id


@pytest.mark.parametrize("role", ["supervisor", "supervisor-claim"])
async def test_a_cancel_that_comes_as_the_command_has_just_been_sent_is_not_lost(redis_url: str, role: Role) -> None:
    """The loop that waits for work would go on for ever, and a supervisor asked to stop with it."""
    client = patient(connect(load({}, redis_url=redis_url), role))
    try:
        for turns in [*range(20)] * 5:
            waiting = asyncio.ensure_future(client.blpop(["nothing comes here"], timeout=60))
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting], timeout=20)
            assert waiting.done(), f"cancelled after {turns} turns of the loop"
            assert waiting.cancelled()
    finally:
        await client.aclose()


def test_closing_a_client_does_not_fail_because_the_machine_is_busy(redis_url: str) -> None:
    """On uvloop, as the services run; each turn of the loop takes longer than the client waits for anything."""

    async def close() -> None:
        client = connect(load({}, redis_url=redis_url, lease_s=1.2), "supervisor-beat")
        connected = False
        while not connected:
            with contextlib.suppress(exceptions.TimeoutError):
                connected = await client.ping()
        calm = asyncio.Event()

        def stall(turns: int) -> None:
            time.sleep(0.25)
            if turns:
                asyncio.get_running_loop().call_soon(stall, turns - 1)
            else:
                calm.set()

        asyncio.get_running_loop().call_soon(stall, 5)
        await client.aclose()
        await calm.wait()

    uvloop.run(close())

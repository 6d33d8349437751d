"""The stack of a running task: asked of its supervisor once for everybody, or refused with the reason."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from app import stack as module
from app.door import Door
from taskgate.contract import keys
from taskgate.contract.models import Claimed
from taskgate.contract.stacks import Frame, StackAnswer, Thread
from tests.api.conftest import Worker, client_of, submit
from tests.conftest import eventually

THREADS = [
    Thread("MainThread", True, [Frame("/a/job.py", 3, "inner"), Frame("/a/job.py", 9, "job")]),
    Thread("pool", False, [Frame("/a/pool.py", None, "work")], truncated=True),
]


class Supervisor:
    """Answers what it is asked by pub/sub, as told."""

    def __init__(self, redis_client: Redis, worker: Worker) -> None:
        self.asked: list[str] = []
        self.says: StackAnswer | bytes | None = None
        self.before: Callable[[], Awaitable[object]] | None = None
        self._redis = redis_client
        self._inbox = keys.inbox(0, worker.info.id)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with self._redis.pubsub() as inbox:
            await inbox.subscribe(self._inbox)
            assert await inbox.get_message(timeout=30) is not None
            serving = asyncio.ensure_future(self._serve(inbox))
            yield
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self, inbox: PubSub) -> None:
        while True:
            message = await inbox.get_message(timeout=5)
            if message is None:
                continue
            word, task_id, request, channel = message["data"].decode().split()
            assert word == "stack"
            self.asked.append(task_id)
            if self.before is not None:
                await self.before()
            if self.says is not None:
                body = self.says if isinstance(self.says, bytes) else msgspec.json.encode(self.says)
                await self._redis.publish(channel, request.encode() + b" " + body)


def answer(task: Claimed, **more: Any) -> StackAnswer:
    return StackAnswer(task_id=task.id, attempt=1, worker="w", taken_at_ms=1_700_000_000_000, **more)


@pytest.fixture(autouse=True)
def _as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 60)


@pytest.fixture
async def supervisor(redis_client: Redis, worker: Worker) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(redis_client, worker)
    async with supervisor.listening():
        yield supervisor


@pytest.fixture
async def live(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway that listens; the worker has published its types."""
    door = gateway_of(tenant_header="X-Tenant")
    listening = asyncio.ensure_future(door.gateway.hub.run())
    mailbox = door.gateway.hub.mailbox
    await eventually(lambda: redis_client.pubsub_numsub(mailbox), lambda found: found[0][1] == 1)
    async with client_of(door) as client:
        yield client
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


@pytest.fixture
async def task(live: httpx.AsyncClient, worker: Worker) -> Claimed:
    """One that runs."""
    await submit(live)
    [task] = await worker.claim()
    return task


async def test_frames_and_text_come_from_the_supervisor(
    live: httpx.AsyncClient, supervisor: Supervisor, task: Claimed
) -> None:
    supervisor.says = answer(task, source="faulthandler", threads=THREADS)

    got = await live.get(f"/tasks/{task.id}/stack")

    assert (got.status_code, got.headers["cache-control"]) == (200, "no-store")
    assert got.json() == {
        "task_id": task.id,
        "attempt": 1,
        "worker": "w",
        "taken_at": "2023-11-14T22:13:20Z",
        "source": "faulthandler",
        "shared": False,
        "threads": msgspec.to_builtins(THREADS),
        "text": "MainThread (most recent call first):\n"
        '  File "/a/job.py", line 3 in inner\n  File "/a/job.py", line 9 in job\n'
        'pool (most recent call first):\n  File "/a/pool.py", line ? in work\n  …',
        "reason": None,
    }


async def test_whoever_asks_at_once_or_right_after_gets_the_same(
    live: httpx.AsyncClient, supervisor: Supervisor, task: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARED_S", 60)
    supervisor.says = answer(task, source="loop", threads=THREADS)

    all_got = await asyncio.gather(*(live.get(f"/tasks/{task.id}/stack") for _ in range(20)))
    after = await live.get(f"/tasks/{task.id}/stack")

    assert {got.status_code for got in all_got} == {after.status_code} == {200}
    assert supervisor.asked == [task.id]


async def test_no_stack_is_null_with_its_reason(live: httpx.AsyncClient, supervisor: Supervisor, task: Claimed) -> None:
    supervisor.says = answer(task, reason="paused")

    got = (await live.get(f"/tasks/{task.id}/stack")).json()

    assert (got["threads"], got["text"], got["source"], got["reason"]) == (None, None, None, "paused")


async def test_only_what_runs_has_a_stack_and_only_for_its_tenant(
    live: httpx.AsyncClient, supervisor: Supervisor, worker: Worker, task: Claimed
) -> None:
    waits = await submit(live)
    foreign = await live.get(f"/tasks/{task.id}/stack", headers={"X-Tenant": "other"})
    unknown = await live.get("/tasks/none/stack")
    queued = await live.get(f"/tasks/{waits['id']}/stack")
    await worker.finish(task)
    ended = await live.get(f"/tasks/{task.id}/stack")

    assert (foreign.status_code, unknown.status_code) == (404, 404)
    for got, status in ((queued, "queued"), (ended, "succeeded")):
        assert (got.status_code, got.json()["type"]) == (409, "/problems/not-running")
        assert got.json()["task_status"] == status
    assert supervisor.asked == []


async def test_one_that_ends_while_it_is_asked_is_said_to_have_ended(
    live: httpx.AsyncClient, supervisor: Supervisor, worker: Worker, task: Claimed
) -> None:
    supervisor.before = lambda: worker.finish(task)
    supervisor.says = answer(task, reason="ended")

    got = await live.get(f"/tasks/{task.id}/stack")

    assert (got.status_code, got.json()["task_status"]) == (409, "succeeded")


async def test_one_that_has_ended_for_its_supervisor_first_is_asked_for_again_until_the_record_says_so(
    live: httpx.AsyncClient,
    supervisor: Supervisor,
    worker: Worker,
    task: Claimed,
) -> None:
    async def finish_at_the_third() -> None:
        if len(supervisor.asked) == 3:
            await worker.finish(task)

    supervisor.before = finish_at_the_third
    supervisor.says = answer(task, reason="ended")

    got = await live.get(f"/tasks/{task.id}/stack")

    assert (got.status_code, got.json()["task_status"]) == (409, "succeeded")
    assert len(supervisor.asked) == 3


@pytest.mark.parametrize("says", [None, b"garbage", "ended"])
async def test_a_supervisor_that_does_not_answer_is_waited_for_no_longer_than_that(
    live: httpx.AsyncClient,
    supervisor: Supervisor,
    task: Claimed,
    says: bytes | str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.3)
    supervisor.says = answer(task, reason="ended") if isinstance(says, str) else says

    got = await live.get(f"/tasks/{task.id}/stack")

    assert (got.status_code, got.json()["type"]) == (503, "/problems/no-answer")
    assert got.headers["retry-after"] == "1"


async def test_where_no_supervisor_listens_that_is_said_at_once(live: httpx.AsyncClient, task: Claimed) -> None:
    async with asyncio.timeout(module.ANSWER_S / 2):
        got = await live.get(f"/tasks/{task.id}/stack")

    assert (got.status_code, got.json()["type"]) == (503, "/problems/no-answer")

"""Long polls: `?wait=` and `Prefer: wait=`, against a real gateway process."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from app import waiting
from app.door import Door
from app.errors import Problem
from taskgate.contract import keys
from taskgate.contract.errors import TaskNotFound
from tests.api.conftest import Served, Worker, client_of, submit, subscriptions
from tests.conftest import eventually

LONG = {"wait": "60"}
BEFORE = "from app import hub, snapshots, waiting; hub.BACKUP_S = waiting.BACKUP_S = 600; snapshots.FINAL_TTL_S = 600"
"""Nobody looks by himself: who is answered was woken."""
WOKEN_S = 50
"""Before the end of a LONG wait, when all are answered."""


@pytest.fixture
async def http(shared_gateway: Served, worker: Worker, redis_client: Redis) -> AsyncIterator[httpx.AsyncClient]:
    """Of a gateway that hears what it is told."""
    served = await shared_gateway.started()
    await eventually(lambda: subscriptions(redis_client), lambda count: count >= 2)
    async with client(served) as http:
        yield http


def client(served: Served) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=served.url, timeout=70, limits=httpx.Limits(max_connections=None))


async def watchers(redis: Redis, *task_ids: str) -> int:
    """How many connections are subscribed to changes of these tasks."""
    found = await redis.pubsub_numsub(*(keys.changes(0, task_id) for task_id in task_ids))
    return sum(count for _, count in found)


async def held(
    http: httpx.AsyncClient, redis: Redis, task_id: str, *, headers: dict[str, str] | None = None
) -> "asyncio.Task[httpx.Response]":
    """A read that waits by now."""
    read = asyncio.ensure_future(http.get(f"/tasks/{task_id}", params=LONG, headers=headers))
    await eventually(lambda: watchers(redis, task_id), lambda count: count == 1)
    return read


async def test_a_read_waits_for_the_end_and_tells_it_at_once(
    http: httpx.AsyncClient, worker: Worker, redis_client: Redis
) -> None:
    task = await submit(http)
    read = await held(http, redis_client, task["id"])
    [claimed] = await worker.claim()
    await worker.report(claimed, health="computing")
    began = time.monotonic()
    await worker.finish(claimed)
    answer = await read
    assert time.monotonic() - began < WOKEN_S, "it was not woken"
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
    assert "preference-applied" not in answer.headers, "it was no preference"
    again = await http.get(f"/tasks/{task['id']}", params=LONG)
    assert again.json()["status"] == "succeeded"
    await eventually(lambda: watchers(redis_client, task["id"]), lambda count: count == 0)


async def test_who_knows_a_state_waits_for_another(
    http: httpx.AsyncClient, worker: Worker, redis_client: Redis
) -> None:
    task = await submit(http)
    read = await held(http, redis_client, task["id"], headers={"If-None-Match": 'W/"1"'})
    await worker.claim()
    answer = await read
    assert (answer.status_code, answer.headers["etag"], answer.json()["status"]) == (200, 'W/"2"', "running")


@pytest.mark.parametrize("fields", [None, "status"])
async def test_at_the_deadline_it_says_what_there_is(http: httpx.AsyncClient, fields: str | None) -> None:
    task = await submit(http)
    url, params = f"/tasks/{task['id']}", {"wait": "0.3", **({"fields": fields} if fields else {})}
    began = time.monotonic()
    current = await http.get(url, params=params)
    assert time.monotonic() - began >= 0.299  # its clock shows whole milliseconds
    assert (current.status_code, current.json()["status"]) == (200, "queued")
    same = await http.get(url, params=params, headers={"If-None-Match": current.headers["etag"]})
    assert time.monotonic() - began >= 0.598
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", current.headers["etag"])


async def test_prefer_is_the_same_wish(http: httpx.AsyncClient) -> None:
    task = await submit(http)
    began = time.monotonic()
    answer = await http.get(f"/tasks/{task['id']}", headers=[("Prefer", "respond-async"), ("Prefer", "wait=1")])
    assert time.monotonic() - began >= 0.999
    assert (answer.status_code, answer.headers["preference-applied"]) == (200, "wait=1")


async def test_the_query_wins_over_a_preference(http: httpx.AsyncClient) -> None:
    task = await submit(http)
    answer = await http.get(f"/tasks/{task['id']}", params={"wait": "0"}, headers={"Prefer": "wait=60"})
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert "preference-applied" not in answer.headers


async def test_who_waits_for_news_is_told_that_the_task_is_lost(http: httpx.AsyncClient, worker: Worker) -> None:
    """Nobody wakes the wait: it looks when the sign of life has run out."""
    brief = Worker(worker.store, "host-2-00000000", lease_ms=1_000)
    task = await submit(http)
    await brief.claim()
    began = time.monotonic()
    answer = await http.get(f"/tasks/{task['id']}", params=LONG, headers={"If-None-Match": 'W/"2"'})
    assert (answer.status_code, answer.json()["health"]) == (200, "lost")
    assert time.monotonic() - began < WOKEN_S


async def test_a_submission_that_ends_in_time_is_200(http: httpx.AsyncClient, worker: Worker) -> None:
    body = {"type": "echo", "payload": {"text": "x"}}
    headers = {"Prefer": "respond-async, wait=50", "Idempotency-Key": "k"}
    submitted = asyncio.ensure_future(http.post("/tasks", json=body, headers=headers))
    [claimed] = await eventually(worker.claim, bool)
    await worker.finish(claimed)
    answer = await submitted
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
    assert answer.headers["preference-applied"] == "wait=50"
    assert answer.headers["location"] == f"/tasks/{claimed.id}"
    assert "retry-after" not in answer.headers

    again = await http.post("/tasks", json=body, headers=headers)
    assert (again.status_code, again.json()["id"], again.headers["idempotent-replayed"]) == (200, claimed.id, "true")


async def test_a_submission_that_does_not_is_202_as_it_is_then(http: httpx.AsyncClient, worker: Worker) -> None:
    body = {"type": "echo", "payload": {"text": "x"}}
    headers = {"Idempotency-Key": "k"}
    first = await http.post("/tasks", json=body, headers=headers)
    [claimed] = await worker.claim()
    answer = await http.post("/tasks", json=body, headers={**headers, "Prefer": "wait=1"})
    assert (answer.status_code, answer.json()["id"], answer.json()["status"]) == (202, claimed.id, "running")
    assert answer.json()["id"] == first.json()["id"]
    assert "preference-applied" not in answer.headers
    assert answer.headers["retry-after"] == "1"


async def test_who_hangs_up_leaves_nothing_and_waits_share_what_they_use(
    http: httpx.AsyncClient, redis_client: Redis
) -> None:
    tasks = [(await submit(http))["id"] for _ in range(10)]
    reads = [await held(http, redis_client, tasks[0])]
    before = len(await redis_client.client_list())
    reads += [asyncio.ensure_future(http.get(f"/tasks/{task_id}", params=LONG)) for task_id in tasks for _ in range(10)]
    await eventually(lambda: watchers(redis_client, *tasks), lambda count: count == len(tasks))
    assert len(await redis_client.client_list()) <= before + 5, "of the pool of all requests, not one each"
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    await eventually(lambda: watchers(redis_client, *tasks), lambda count: count == 0)


async def test_a_gateway_that_drains_answers_those_that_wait(
    serve: Callable[..., Awaitable[Served]], worker: Worker, redis_client: Redis
) -> None:
    served = await serve()
    async with client(served) as http:
        tasks = [(await submit(http))["id"] for _ in range(5)]
        reads = [await held(http, redis_client, task_id) for task_id in tasks]
        submitted = asyncio.ensure_future(
            http.post("/tasks", json={"type": "any", "payload": 1}, headers={"Prefer": "wait=60"})
        )
        await eventually(lambda: redis_client.pubsub_channels("*changes*"), lambda found: len(found) == 6)
        assert await served.stop() == 0
        assert [(read.status_code, read.json()["status"]) for read in await asyncio.gather(*reads)] == [
            (200, "queued")
        ] * 5
        assert (await submitted).status_code == 202


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (b"wait=10", 10),
        (b"respond-async, wait=10", 10),
        (b"WAIT = 10 ; strict", 10),
        (b'foo="a, wait=3", wait="10"', 10),
        (b'foo="a\\", wait=3", wait=10', 10),
        (b"wait=10, wait=20", 10),
        (b"wait=x, wait=20", 0),
        (b"wait=600", 60),
        (b"wait=" + b"9" * 5000, 0),
        (b"wait=-1", 0),
        (b"wait", 0),
        (b"waiter=5; wait=6", 0),
        (b'"wait=5', 0),
        (b"return=minimal", 0),
        (b"", 0),
    ],
)
def test_preferences_are_read_as_rfc_7240_says(prefer: bytes, seconds: int) -> None:
    assert waiting.preferred_s(prefer) == seconds


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("1.5", 1.5), ("60", 60), ("61", 60), ("99999", 60)])
def test_waits_are_at_most_a_minute(text: str, seconds: float) -> None:
    assert waiting.asked_s(text) == seconds


@pytest.mark.parametrize("text", ["", "abc", "-1", "nan", "inf", "1e3", "1,5", "١"])
def test_other_waits_are_refused(text: str) -> None:
    with pytest.raises(Problem, match="bad-request"):
        waiting.asked_s(text)


async def test_what_cannot_be_understood_is_400_at_once(http: httpx.AsyncClient) -> None:
    task = await submit(http)
    for params, problem in (({"wait": "abc"}, "bad-request"), ({**LONG, "fields": "nope"}, "unknown-field")):
        answer = await asyncio.wait_for(http.get(f"/tasks/{task['id']}", params=params), 30)
        assert (answer.status_code, answer.json()["type"]) == (400, f"/problems/{problem}")


async def test_what_one_gateway_deletes_no_other_shows(
    http: httpx.AsyncClient, gateway_of: Callable[..., Door], worker: Worker
) -> None:
    """Though it has it in memory, for longer than what may still change."""
    task = await submit(http)
    [claimed] = await worker.claim()
    await worker.finish(claimed)
    url = f"/tasks/{task['id']}"
    await eventually(lambda: http.get(url), lambda answer: answer.json()["status"] == "succeeded")
    async with client_of(gateway_of()) as other:
        assert (await other.delete(url)).status_code == 204
    await eventually(lambda: http.get(url), lambda answer: answer.status_code == 404)


async def test_what_another_gateway_has_shown_is_not_taken_back(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    """A client that names what it knows never reads an older state out of the memory of a second gateway."""
    async with client_of(gateway_of(status_cache_ms=60_000)) as one, client_of(gateway_of()) as other:
        task = await submit(one)
        url = f"/tasks/{task['id']}"
        assert (await one.get(url)).json()["status"] == "queued"
        await worker.claim()
        newer = await other.get(url)
        assert newer.json()["status"] == "running"
        assert (await one.get(url)).json()["status"] == "queued"
        assert (await one.get(url, headers={"If-None-Match": newer.headers["etag"]})).status_code == 304
        assert (await one.get(url)).json()["status"] == "running"


async def test_a_read_begun_before_the_submission_does_not_hide_it(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has seen the 202 finds the task, though another reader's look for it was under way then."""
    door = gateway_of()
    snapshots = door.gateway.snapshots
    async with client_of(gateway_of()) as http:
        [group] = snapshots._groups
        may_go_on, answers = asyncio.Event(), []

        async def slow_read(task_id: str) -> Any:
            answers.append(await group(task_id))
            if len(answers) == 1:
                await may_go_on.wait()
                return None  # it looked before the submission
            return answers[-1]

        monkeypatch.setattr(snapshots, "_groups", [slow_read])
        task = await submit(http)
        early = asyncio.ensure_future(snapshots.get(task["id"], "default"))
        late = asyncio.ensure_future(snapshots.get(task["id"], "default"))
        await asyncio.sleep(0)
        may_go_on.set()
        assert (await late).record.id == task["id"]
        with pytest.raises(TaskNotFound, match=task["id"]):
            await early

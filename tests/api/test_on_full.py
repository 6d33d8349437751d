"""`on_full`: what a gateway does with a submission for which there is no room."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from app import waiters
from app.door import Door
from taskgate.contract import keys
from tests.api.conftest import Worker, client_of, next_ms, submit
from tests.conftest import eventually

Gateways = Callable[..., Door]


@pytest.fixture
async def client_with(gateway_of: Gateways, tmp_path: Path) -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    """Clients of gateways with a policy for the queue `default`."""
    async with contextlib.AsyncExitStack() as stack:

        def make(policy: str, **options: Any) -> httpx.AsyncClient:
            path = tmp_path / "policy.toml"
            path.write_text(f"[queues.default]\n{policy}")
            client = client_of(gateway_of(policy_file=path, **options))
            stack.push_async_exit(client)
            return client

        yield make


def post(http: httpx.AsyncClient, text: str = "hello", *, tenant: str = "", **members: Any) -> Any:
    headers = {"X-Tenant": tenant} if tenant else {}
    return http.post("/tasks", json={"type": "echo", "payload": {"text": text}, **members}, headers=headers)


async def in_row(http: httpx.AsyncClient, count: int) -> None:
    """Wait until so many wait in the gateway."""

    async def waiting() -> int:
        door = http._transport.app  # type: ignore[attr-defined]
        return int(door.gateway.submit._waiters._count)

    await eventually(waiting, lambda found: found == count)


async def running(http: httpx.AsyncClient, worker: Worker, *texts: str) -> list[asyncio.Task[httpx.Response]]:
    """The queue filled with one task, then submissions that wait behind it, in this order."""
    await submit(http)
    tasks = []
    for number, text in enumerate(texts, start=1):
        tasks.append(asyncio.ensure_future(post(http, text)))
        await in_row(http, number)
    return tasks


async def test_who_waits_gets_in_when_there_is_room(client_with: Callable[..., Any], worker: Worker) -> None:
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 30000')
    [waits] = await running(http, worker, "second")
    await worker.claim()
    answer = await waits
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    assert answer.headers["ratelimit"].startswith('"queue-tasks";r=0')


async def test_they_get_in_in_their_order(client_with: Callable[..., Any], worker: Worker) -> None:
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 30000')
    texts = [f"number {n}" for n in range(5)]
    waiting = await running(http, worker, *texts)
    claimed = []
    await worker.claim()
    for _ in texts:
        [task] = await eventually(worker.claim, bool)
        claimed.append(task.payload)
    assert claimed == [b'{"text":"%s"}' % text.encode() for text in texts]
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {202}


async def test_after_its_time_it_is_refused_with_a_place_in_the_row(
    client_with: Callable[..., Any], worker: Worker, redis_client: Redis
) -> None:
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 200')
    await submit(http)
    started = time.monotonic()
    waits = asyncio.ensure_future(post(http))
    await in_row(http, 1)
    assert not await redis_client.hexists(keys.usage(0), "room_at:default")
    answer = await waits
    assert time.monotonic() - started >= 0.2
    assert (answer.status_code, answer.json()["limit"]) == (429, "queue-tasks")
    assert int(answer.headers["retry-after"]) >= 1
    assert await redis_client.hexists(keys.usage(0), "room_at:default")


async def test_beyond_the_bound_of_waiters_refusals_are_immediate(
    client_with: Callable[..., Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "MOST", 2)
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 30000')
    waiting = await running(http, worker, "a", "b")
    refused = await post(http, "one too many")
    assert refused.status_code == 429
    await worker.claim()
    await eventually(worker.claim, bool)
    await eventually(worker.claim, bool)
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {202}


async def test_room_is_for_those_who_wait_also_when_there_are_as_many_as_may(
    client_with: Callable[..., Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "MOST", 1)
    monkeypatch.setattr(waiters, "LOOK_MIN_S", 30)
    monkeypatch.setattr(waiters, "LOOK_MAX_S", 30)
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 30000')
    [waits] = await running(http, worker, "first in the row")
    await worker.claim()
    refused = await post(http, "later")
    assert refused.status_code == 429
    [row] = http._transport.app.gateway.submit._waiters._rows.values()
    row._news.set()  # as if it were time to look
    assert (await waits).status_code == 202


async def test_who_waits_for_one_queue_keeps_nobody_out_of_another(
    client_with: Callable[..., Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "MOST", 1)
    both = 'limit_tasks = 1\non_full = "wait"\nwait_ms = 30000'
    http = client_with(f"{both}\n[queues.other]\n{both}")
    [waits] = await running(http, worker, "first in the row")
    assert (await post(http, queue="other")).status_code == 202
    refused = await post(http, queue="other")
    assert (refused.status_code, refused.json()["limit"]) == (429, "queue-tasks")
    assert int(refused.headers["retry-after"]) < 10
    await worker.claim()
    assert (await waits).status_code == 202


async def test_who_waits_for_its_own_limit_keeps_nobody_out(
    client_with: Callable[..., Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "MOST", 1)
    policy = 'limit_tasks = 10\non_full = "wait"\nwait_ms = 30000\n[tenants."*"]\nlimit_tasks = 1'
    http = client_with(policy, tenant_header="X-Tenant")
    assert (await post(http, tenant="a")).status_code == 202
    waits = asyncio.ensure_future(post(http, tenant="a"))
    await in_row(http, 1)
    assert (await post(http, tenant="b")).status_code == 202
    await worker.claim()
    assert (await waits).status_code == 202


async def test_the_limit_that_is_named_is_that_for_which_others_wait(
    client_with: Callable[..., Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a small one would have room, and a larger one waits."""
    monkeypatch.setattr(waiters, "MOST", 1)
    http = client_with('limit_bytes = 6000\non_full = "wait"\nwait_ms = 30000')
    await submit(http)
    waits = asyncio.ensure_future(post(http, "x" * 2000))
    await in_row(http, 1)

    async def limit() -> str:
        [row] = http._transport.app.gateway.submit._waiters._rows.values()
        return str(row.limit)

    await eventually(limit, lambda found: found == "queue-bytes")
    assert (await post(http, "small")).json()["limit"] == "queue-bytes"
    await worker.claim()
    assert (await waits).status_code == 202


async def test_many_bytes_are_as_many_waiters(
    client_with: Callable[..., Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "MOST_BYTES", 100)
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 30000')
    await submit(http)
    assert (await post(http, "x" * 101)).status_code == 429


async def test_one_at_its_tenants_limit_holds_nobody_else_up(client_with: Callable[..., Any], worker: Worker) -> None:
    policy = 'limit_tasks = 10\non_full = "wait"\nwait_ms = 30000\n[tenants."*"]\nlimit_tasks = 1'
    http = client_with(policy, tenant_header="X-Tenant")
    assert (await post(http, tenant="a")).status_code == 202
    waits = asyncio.ensure_future(post(http, tenant="a"))
    await in_row(http, 1)
    assert (await post(http, tenant="b")).status_code == 202
    assert not waits.done()
    await worker.claim()
    assert (await waits).status_code == 202


async def test_a_client_that_hangs_up_gives_its_place_up(client_with: Callable[..., Any], worker: Worker) -> None:
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 30000')
    gone, waits = await running(http, worker, "gone", "stays")
    gone.cancel()
    await in_row(http, 1)
    await worker.claim()
    assert (await waits).status_code == 202
    [task] = await worker.claim()
    assert task.payload == b'{"text":"stays"}'


async def test_a_process_that_drains_lets_all_go(client_with: Callable[..., Any], worker: Worker) -> None:
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 30000')
    waiting = await running(http, worker, "a", "b")
    http._transport.app.gateway.drain()
    for answer in await asyncio.gather(*waiting):
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/service-draining")
        assert answer.headers["retry-after"] == "1"


async def test_a_replay_waits_for_nobody(client_with: Callable[..., Any], worker: Worker) -> None:
    http = client_with('limit_tasks = 2\non_full = "wait"\nwait_ms = 30000')
    body = {"type": "echo", "payload": {"text": "once"}, "unique_key": "u"}
    first = await http.post("/tasks", json=body, headers={"Idempotency-Key": "k"})
    [waits] = await running(http, worker, "waits")
    again = await http.post("/tasks", json=body, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert again.headers["idempotent-replayed"] == "true"
    same = await http.post("/tasks", json=body)
    assert (same.json()["id"], same.headers["unique-existing"]) == (first.json()["id"], "true")
    assert not waits.done()


async def test_a_new_key_waits_behind_those_who_came_before(client_with: Callable[..., Any], worker: Worker) -> None:
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 30000')
    [waits] = await running(http, worker, "first")
    body = {"type": "echo", "payload": {"text": "second"}}
    keyed = asyncio.ensure_future(http.post("/tasks", json=body, headers={"Idempotency-Key": "k"}))
    await in_row(http, 2)
    claimed = [(await eventually(worker.claim, bool))[0].payload for _ in range(3)]
    assert claimed[1:] == [b'{"text":"first"}', b'{"text":"second"}']
    assert {(await waits).status_code, (await keyed).status_code} == {202}


async def test_spilled_is_accepted_and_failed_and_can_be_redriven(
    client_with: Callable[..., Any], worker: Worker
) -> None:
    http = client_with('limit_tasks = 1\non_full = "spill"\nspill_tasks = 1')
    await submit(http)
    answer = await post(http, "spilled")
    task = answer.json()
    assert (answer.status_code, task["status"], task["error"]["kind"]) == (202, "failed", "overflow")
    assert answer.headers["location"] == f"/tasks/{task['id']}"
    assert "retry-after" not in answer.headers, "it has ended"
    assert [letter["id"] for letter in (await http.get("/dead-letters?queue=default")).json()["items"]] == [task["id"]]
    refused = await post(http, "no room for more letters")
    assert (refused.status_code, refused.json()["limit"]) == (429, "queue-tasks")
    await worker.claim()
    assert (await http.post(f"/tasks/{task['id']}/redrive")).status_code == 202
    [claimed] = await worker.claim()
    assert claimed.payload == b'{"text":"spilled"}'


async def test_a_spilled_task_keeps_its_start_time_and_its_start_deadline(
    client_with: Callable[..., Any], worker: Worker
) -> None:
    http = client_with('limit_tasks = 1\non_full = "spill"')
    await submit(http)
    later = (await post(http, "later", delay_s=60, deadline_s=90)).json()
    over = (await post(http, "over", deadline_s=0.001)).json()
    assert (later["status"], over["status"]) == ("failed", "failed")
    assert later["deadline_at"]
    await next_ms(worker.store)
    await next_ms(worker.store)
    await worker.claim()
    refused = await http.post(f"/tasks/{over['id']}/redrive")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/deadline-passed")
    answer = (await http.post("/dead-letters/redrive", json={"filter": {}})).json()
    assert (answer["redriven"], answer["skipped"]) == (1, 1)
    task = (await http.get(f"/tasks/{later['id']}")).json()
    assert (task["status"], task["deadline_at"]) == ("scheduled", later["deadline_at"])
    assert task["scheduled_at"] < task["deadline_at"]


async def test_a_spilled_task_is_the_answer_to_its_key_and_has_ended_for_those_who_wait(
    client_with: Callable[..., Any], worker: Worker
) -> None:
    http = client_with('limit_tasks = 1\non_full = "spill"')
    await submit(http)
    body = {"type": "echo", "payload": {"text": "once"}}
    headers = {"Idempotency-Key": "k", "Prefer": "wait=20"}
    first = await http.post("/tasks", json=body, headers=headers)
    assert (first.status_code, first.json()["status"]) == (200, "failed")
    again = await http.post("/tasks", json=body, headers={"Idempotency-Key": "k"})
    assert (again.json()["id"], again.headers["idempotent-replayed"]) == (first.json()["id"], "true")
    assert "retry-after" not in again.headers


async def test_who_comes_to_wait_while_the_process_drains_does_not(
    client_with: Callable[..., Any], worker: Worker
) -> None:
    """As one whose body was still arriving."""
    http = client_with('limit_tasks = 1\non_full = "wait"\nwait_ms = 30000')
    await submit(http)
    http._transport.app.gateway.submit.drain()
    answer = await post(http)
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/service-draining")

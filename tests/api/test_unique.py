"""`unique_key` over HTTP: what is answered while another task with the key has not ended."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.door import Door
from tests.api.conftest import Worker, client_of, submit

BODY = {"type": "any", "payload": 1, "unique_key": "order 7"}


async def post(http: httpx.AsyncClient, *, headers: dict[str, str] | None = None, **members: Any) -> httpx.Response:
    return await http.post("/tasks", json={**BODY, **members}, headers=headers or {})


async def test_the_first_is_accepted_and_shows_its_keys(http: httpx.AsyncClient) -> None:
    accepted = await submit(http, unique_key="order 7", concurrency_key="customer ~")
    assert (accepted["unique_key"], accepted["concurrency_key"]) == ("order 7", "customer ~")
    read = (await http.get(f"/tasks/{accepted['id']}")).json()
    assert (read["unique_key"], read["concurrency_key"]) == ("order 7", "customer ~")
    plain = await submit(http)
    assert (plain["unique_key"], plain["concurrency_key"]) == (None, None)


async def test_the_existing_one_is_answered_as_it_is_now(http: httpx.AsyncClient, worker: Worker) -> None:
    first = await post(http)
    assert "unique-existing" not in first.headers
    [claimed] = await worker.claim()
    again = await post(http, payload="of another kind")
    assert (again.status_code, again.headers["unique-existing"]) == (202, "true")
    assert "idempotent-replayed" not in again.headers
    assert again.headers["location"] == f"/tasks/{claimed.id}"
    assert (again.json()["id"], again.json()["status"]) == (first.json()["id"], "running")

    await worker.finish(claimed)
    second = await post(http)
    assert second.json()["id"] != first.json()["id"]
    assert "unique-existing" not in second.headers


async def test_a_key_that_led_to_the_existing_one_replays_it(http: httpx.AsyncClient, worker: Worker) -> None:
    first = await post(http)
    again = await post(http, headers={"Idempotency-Key": "k"})
    assert again.headers["unique-existing"] == "true"
    await worker.finish((await worker.claim())[0])
    replay = await post(http, headers={"Idempotency-Key": "k"})
    assert replay.headers["idempotent-replayed"] == "true"
    assert "unique-existing" not in replay.headers
    assert (replay.json()["id"], replay.json()["status"]) == (first.json()["id"], "succeeded")


async def test_refuse_is_409_and_names_the_task(http: httpx.AsyncClient, worker: Worker) -> None:
    first = await post(http)
    refused = await post(http, on_conflict="refuse")
    problem = refused.json()
    assert (refused.status_code, problem["type"]) == (409, "/problems/unique-conflict")
    assert (problem["task_id"], problem["task_status"]) == (first.json()["id"], "queued")
    assert len(await worker.claim(9)) == 1


async def test_replace_cancels_what_waits_and_not_what_runs(http: httpx.AsyncClient, worker: Worker) -> None:
    first = await post(http, payload="old", delay_s=60)
    second = await post(http, payload="new", on_conflict="replace")
    assert second.status_code == 202
    assert "unique-existing" not in second.headers
    replaced = await http.get(f"/tasks/{first.json()['id']}", headers={"Cache-Control": "no-cache"})
    assert replaced.json()["status"] == "canceled"
    [claimed] = await worker.claim(9)
    assert (claimed.id, claimed.payload) == (second.json()["id"], b'"new"')

    third = await post(http, payload="newer", on_conflict="replace")
    assert (third.status_code, third.json()["task_status"]) == (409, "running")


async def test_who_waits_for_the_end_waits_for_the_existing_one(http: httpx.AsyncClient, worker: Worker) -> None:
    first = await post(http)
    await worker.claim()
    answer = await post(http, headers={"Prefer": "wait=1"})
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    assert (answer.json()["id"], answer.headers["unique-existing"]) == (first.json()["id"], "true")


async def test_a_redrive_while_another_has_the_key_is_409(http: httpx.AsyncClient, worker: Worker) -> None:
    first = await post(http)
    await worker.finish((await worker.claim())[0], "failed")
    second = await post(http)
    refused = await http.post(f"/tasks/{first.json()['id']}/redrive")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/unique-conflict")
    assert refused.json()["task_id"] == second.json()["id"]


@pytest.mark.parametrize("more", [{}, {"concurrency_key": "c"}])
async def test_fifty_at_once_with_one_key_are_one_task(
    gateway_of: Callable[..., Door], worker: Worker, more: dict[str, str]
) -> None:
    """Two gateways and several partitions; every answer tells of the one task, and another tenant has its own."""
    clients = [client_of(gateway_of(partitions=4, tenant_header="X-Tenant")) for _ in range(2)]
    for key in ("a", "b/c?d", "*"):
        headers = [{"Idempotency-Key": f"{key}{n}"} if n % 2 else {} for n in range(50)]
        answers = await asyncio.gather(
            *(post(random.choice(clients), unique_key=key, headers=each, **more) for each in headers)
        )
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert sum("unique-existing" not in answer.headers for answer in answers) == 1
        theirs = await post(clients[0], unique_key=key, headers={"X-Tenant": "other"}, **more)
        assert (theirs.status_code, "unique-existing" in theirs.headers) == (202, False)
    for client in clients:
        await client.aclose()


async def test_fifty_that_replace_each_other_leave_one(gateway_of: Callable[..., Door], worker: Worker) -> None:
    clients = [client_of(gateway_of()) for _ in range(2)]
    answers = await asyncio.gather(*(post(random.choice(clients), on_conflict="replace") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 50
    [claimed] = await worker.claim(99)
    assert claimed.id in {answer.json()["id"] for answer in answers}
    for client in clients:
        await client.aclose()


async def test_tasks_of_one_concurrency_key_lie_in_one_partition(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    async with client_of(gateway_of(partitions=8)) as http:
        tasks = [await submit(http, concurrency_key="c") for _ in range(8)]
        assert len({task["id"][-2:] for task in tasks}) == 1


async def test_the_existing_one_is_answered_by_a_full_queue(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(queue_limit_tasks=1)) as http:
        first = await post(http)
        assert (await post(http, unique_key="other")).status_code == 429
        assert (await post(http)).json()["id"] == first.json()["id"]
        assert (await post(http, on_conflict="refuse")).status_code == 409
        assert (await post(http, on_conflict="replace")).status_code == 202, "it takes the place that it frees"
        assert (await post(http, unique_key="other")).status_code == 429

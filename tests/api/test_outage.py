"""Redis away: nothing is accepted and lost, nothing needs a restart afterwards."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from app.door import Door
from app.errors import problem_of
from taskgate.contract.errors import OutcomeUnknown
from taskgate.contract.store import Store
from tests.api.conftest import Worker, be_patient, client_of, submit
from tests.conftest import Server, eventually

BODY = {"type": "any", "payload": 1}


@pytest.fixture
async def admin(own_server: Server) -> AsyncIterator[Any]:
    async with Redis.from_url(own_server.url, protocol=2) as client:
        yield client


@pytest.fixture(autouse=True)
async def published(admin: Any) -> None:
    """The types are known, and a supervisor has beaten."""
    worker = Worker(Store(admin))
    await worker.publish()
    await worker.beat()


async def test_a_restart_heals_by_itself(
    gateway_of: Callable[..., Door], own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F20: 503 with Retry-After meanwhile, readiness red, liveness green; what was accepted is there afterwards."""
    async with client_of(gateway_of(redis_url=own_server.url, status_cache_ms=0)) as http:
        task = await submit(http)
        own_server.stop()

        async def post() -> httpx.Response:
            return await http.post("/tasks", json=BODY)

        # The very first may have been on its way when the connection broke.
        refused = await eventually(post, lambda answer: "outcome" not in answer.json())
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/dependency-unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        for path in (f"/tasks/{task['id']}", f"/tasks/{task['id']}/result", f"/tasks/{task['id']}/events", "/workers"):
            answer = await http.get(path)
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True), path
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/livez")).status_code == 200

        own_server.start("--appendonly", "yes", "--appendfsync", "always")
        assert (await http.get(f"/tasks/{task['id']}")).json()["status"] == "queued"
        assert (await http.post("/tasks", json=BODY)).status_code == 202
        monkeypatch.setattr("app.readiness.WITHIN_S", 30)
        assert (await http.get("/readyz")).json()["checks"]["redis"]["ok"]


async def test_a_submission_without_an_answer_says_so_and_names_the_task(
    gateway_of: Callable[..., Door], own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.types.FRESH_S", 600)  # or the look for types takes the connection that there is
    async with client_of(gateway_of(redis_url=own_server.url)) as http:
        await submit(http)
        assert own_server.process is not None
        os.kill(own_server.process.pid, signal.SIGSTOP)
        try:
            unknown = await http.post("/tasks", json=BODY, headers={"Idempotency-Key": "k"})
            ready = await http.get("/readyz")
        finally:
            os.kill(own_server.process.pid, signal.SIGCONT)
        assert (unknown.status_code, unknown.json()["outcome"]) == (503, "unknown")
        assert int(unknown.headers["retry-after"]) >= 1
        assert ready.status_code == 503

        async def read() -> int:
            return (await http.get(f"/tasks/{unknown.json()['task_id']}")).status_code

        await eventually(read, lambda status: status == 200)
        again = await http.post("/tasks", json=BODY, headers={"Idempotency-Key": "k"})
        assert again.json()["id"] == unknown.json()["task_id"]


async def test_advice_about_an_unknown_outcome_names_a_task_and_a_key_only_where_there_are_any() -> None:
    submission, purge = problem_of(OutcomeUnknown(""), task_id="t"), problem_of(OutcomeUnknown(""))
    assert b"Idempotency-Key" in submission.body("r")
    assert b"Idempotency-Key" not in purge.body("r")
    assert "look what has changed" in purge.detail


async def test_nobody_waits_for_a_slow_server_longer_than_promised(
    gateway_of: Callable[..., Door], own_server: Server, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F20: within 5 s, also behind another call; what was sent is carried out all the same."""
    monkeypatch.setattr("app.submit.ANSWER_WITHIN_S", 0.2)
    door = gateway_of(redis_url=own_server.url)
    be_patient(door.gateway._client)  # a call that is given up while Redis pauses is never carried out
    async with client_of(door) as http:
        await submit(http)
        await admin.client_pause(60_000, all=False)
        answers = [await http.post("/tasks", json=BODY) for _ in range(2)]
        await admin.client_unpause()
        assert [(each.status_code, each.json()["outcome"]) for each in answers] == [(503, "unknown")] * 2

        async def read() -> set[int]:
            return {(await http.get(f"/tasks/{each.json()['task_id']}")).status_code for each in answers}

        await eventually(read, lambda found: found == {200})


async def test_a_full_memory_refuses_submissions_only(
    gateway_of: Callable[..., Door], own_server: Server, admin: Any
) -> None:
    """F21: 503 for what is new; reads and cancels go on, and so do submissions once there is room."""
    async with client_of(gateway_of(redis_url=own_server.url)) as http:
        task = await submit(http)
        await admin.config_set("maxmemory", 1)
        full = await http.post("/tasks", json=BODY)
        assert (full.status_code, full.json()["type"]) == (503, "/problems/dependency-unavailable")
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get(f"/tasks/{task['id']}")).status_code == 200
        assert (await http.post(f"/tasks/{task['id']}/cancel")).status_code == 200
        await admin.config_set("maxmemory", 0)
        assert (await http.post("/tasks", json=BODY)).status_code == 202

"""`POST /tasks`: when a task is to run, at the edges of what can be said."""

from datetime import datetime, timedelta

import httpx

from tests.api.conftest import submit


async def test_a_tiny_delay_or_deadline_is_not_none(http: httpx.AsyncClient) -> None:
    assert (await submit(http, delay_s=1e-9))["status"] == "scheduled"
    task = await submit(http, deadline_s=1e-9)
    read = (await http.get(f"/tasks/{task['id']}")).json()
    assert read["deadline_at"] is not None
    exact = await submit(http, deadline_s=1.1)
    created, deadline = (datetime.fromisoformat(exact[name]) for name in ("created_at", "deadline_at"))
    assert deadline - created == timedelta(seconds=1.1)


async def test_no_time_further_away_than_any_delay(http: httpx.AsyncClient) -> None:
    answer = await http.post("/tasks", json={"type": "any", "payload": 1, "run_at": "9999-12-31T23:59:59Z"})
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == ["#/run_at"]

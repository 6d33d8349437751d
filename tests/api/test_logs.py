"""GET /tasks/{id}/logs: what a task printed, in pages and as text, and as events of its stream."""

from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract.models import Claimed
from taskgate.contract.store import Store
from tests.api.conftest import Worker, submit

HEADERS = {"Accept": "text/plain"}


def said(text: str, **more: Any) -> tuple[bytes, int]:
    """An entry as the supervisor writes it."""
    entry = {"attempt": 1, "stream": "stdout", "at": "2026-01-31T00:00:00.000Z", "text": text, **more}
    return msgspec.json.encode(entry), len(text)


async def printing(http: httpx.AsyncClient, worker: Worker, *texts: str, **more: Any) -> tuple[str, Claimed]:
    """A running task that has printed."""
    task_id = (await submit(http))["id"]
    [task] = await worker.claim()
    await worker.report(task, logs=[said(text) for text in texts], **more)
    return task_id, task


async def test_output_is_read_in_the_order_in_which_it_was_written(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id, _ = await printing(http, worker, "a\n", "b\n")
    page = (await http.get(f"/tasks/{task_id}/logs")).json()
    assert [(one["text"], one["stream"], one["attempt"]) for one in page["items"]] == [
        ("a\n", "stdout", 1),
        ("b\n", "stdout", 1),
    ]
    assert (page["truncated"], page["dropped_bytes"], page["next"]) == (False, 0, None)


async def test_pages_follow_one_another(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id, _ = await printing(http, worker, *"abcde")
    texts, after = "", ""
    while True:
        page = (await http.get(f"/tasks/{task_id}/logs?limit=2{after}")).json()
        texts += "".join(one["text"] for one in page["items"])
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert texts == "abcde"
    assert (await http.get(f"/tasks/{task_id}/logs?limit=5000")).json()["next"] is None


async def test_a_task_that_printed_nothing_has_an_empty_page(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id = (await submit(http))["id"]
    answer = await http.get(f"/tasks/{task_id}/logs")
    assert answer.json() == {"items": [], "truncated": False, "dropped_bytes": 0, "next": None}


async def test_what_was_dropped_is_said_in_both_forms(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id, task = await printing(http, worker, "first", logs_lost=30)
    await worker.report(task, logs=[said("second\n", dropped_bytes=20)], logs_lost=20)
    page = (await http.get(f"/tasks/{task_id}/logs")).json()
    assert (page["truncated"], page["dropped_bytes"]) == (True, 50)
    assert page["items"][1]["dropped_bytes"] == 20
    text = await http.get(f"/tasks/{task_id}/logs", headers=HEADERS)
    assert text.text == (
        "[taskgate: 30 bytes of output were dropped here]\nfirst\n"
        "[taskgate: 20 bytes of output were dropped here]\nsecond\n"
    )
    assert text.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/plain, application/json", "application/json"),
        ("text/plain;q=0.9", "text/plain; charset=utf-8"),
        ("", "application/json"),
    ],
)
async def test_text_is_for_those_who_ask_for_it(
    http: httpx.AsyncClient, worker: Worker, accept: str, kind: str
) -> None:
    task_id, _ = await printing(http, worker, "\x1b[31m<b>")
    answer = await http.get(f"/tasks/{task_id}/logs", headers={"Accept": accept})
    assert answer.headers["content-type"] == kind
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "query", ["after=x", "after=1", "after=-1", "after=99999999999999999999-0", "limit=0", "limit=x"]
)
async def test_a_query_that_means_nothing_is_refused(http: httpx.AsyncClient, worker: Worker, query: str) -> None:
    task_id, _ = await printing(http, worker, "a")
    assert (await http.get(f"/tasks/{task_id}/logs?{query}")).status_code == 400


async def test_nobody_reads_what_is_not_his(http: httpx.AsyncClient) -> None:
    assert (await http.get("/tasks/0/logs")).status_code == 404
    unknown = await http.get("/tasks/01900000-0000-7000-8000-000000000000/logs")
    assert unknown.status_code in (404, 410)


async def test_output_that_retention_dropped_is_a_gap_of_the_stream(
    http: httpx.AsyncClient, worker: Worker, redis_client: Redis
) -> None:
    task_id, task = await printing(http, worker, "a\n")
    seen = (await worker.store.events(task_id))[0].id
    await worker.finish(task, result=b'"%s"' % (b"x" * 4000))
    assert await Store(redis_client, retention_bytes=3000).trim(0) == 1
    for path, headers in (
        (f"/tasks/{task_id}/events", {}),
        (f"/tasks/{task_id}/events", {"Last-Event-ID": seen}),
        (f"/events?task={task_id}", {}),
        (f"/events?task={task_id}", {"Last-Event-ID": f"{int(seen.split('-')[0]) - 1}-0"}),
    ):
        text = (await http.get(path, headers=headers)).text
        assert "event: gap" in text, (path, headers)
        assert "event: log" not in text
    last = (await worker.store.events(task_id))[-1].id
    assert (await http.get(f"/tasks/{task_id}/events", headers={"Last-Event-ID": last})).status_code == 204


async def test_output_comes_as_events_of_the_stream_and_resumes_there(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id, task = await printing(http, worker, "a\n", "b\n")
    await worker.finish(task)
    entries = (await http.get(f"/tasks/{task_id}/logs")).json()["items"]
    whole = (await http.get(f"/tasks/{task_id}/events?from=start")).text
    names = [line.removeprefix("event: ") for line in whole.splitlines() if line.startswith("event: ")]
    assert names[-1] == "end"
    assert [name for name in names if name == "log"] == ["log", "log"]
    rest = (await http.get(f"/tasks/{task_id}/events", headers={"Last-Event-ID": entries[0]["id"]})).text
    assert f"id: {entries[1]['id']}\r\nevent: log" in rest
    assert "gap" not in rest
    assert f"id: {entries[0]['id']}" not in rest

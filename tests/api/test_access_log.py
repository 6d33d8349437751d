"""The access log: what every request was, whoever answered it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import structlog

from app.door import Door
from tests.api.conftest import Worker, client_of, submit

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextlib.contextmanager
def requests_logged() -> Iterator[list[dict[str, Any]]]:
    """Filled at the end."""
    found: list[dict[str, Any]] = []
    with structlog.testing.capture_logs() as lines:
        yield found
    found += [dict(line) for line in lines if line["event"] == "request"]


@pytest.fixture
def door(gateway_of: Callable[..., Door], worker: Worker) -> Door:
    return gateway_of(access_log=True, tenant_header="X-Tenant")


async def test_every_request_is_a_line_whoever_answers_it(door: Door) -> None:
    who = {"X-Request-ID": "mine-1", "X-Tenant": "acme"}
    async with client_of(door) as http:
        with requests_logged() as lines:
            accepted = await http.post("/tasks", json={"type": "echo", "payload": {"text": "x"}}, headers=who)
            task_id = accepted.json()["id"]
            for method, path in (
                ("GET", f"/tasks/{task_id}"),
                ("HEAD", f"/tasks/{task_id}"),
                ("GET", f"/tasks/{task_id}/result"),
                ("DELETE", f"/tasks/{task_id}"),
                ("PUT", f"/tasks/{task_id}"),
                ("GET", "/tasks?limit=1"),
                ("GET", "/nope/at/all"),
                ("POST", "/tasks"),
            ):
                await http.request(method, path, headers=who)
    assert [
        (line["method"], line["route"], line["status"], line.get("task_id"), line.get("path")) for line in lines
    ] == [
        ("POST", "/tasks", 202, task_id, None),
        ("GET", "/tasks/{task_id}", 200, task_id, None),
        ("HEAD", "/tasks/{task_id}", 200, task_id, None),
        ("GET", "/tasks/{task_id}/result", 409, task_id, None),
        ("DELETE", "/tasks/{task_id}", 409, task_id, None),
        ("PUT", "/tasks/{task_id}", 405, task_id, None),
        ("GET", "/tasks", 200, None, None),
        ("GET", None, 404, None, "/nope/at/all"),
        ("POST", "/tasks", 415, None, None),
    ]
    assert {(line["request_id"], line["tenant"], line["client"]) for line in lines} == {("mine-1", "acme", "127.0.0.1")}
    assert all(0 < line["duration_ms"] < 60_000 for line in lines)


async def test_a_stream_is_a_line_when_it_has_ended(door: Door, worker: Worker) -> None:
    async with client_of(door) as http:
        task = await submit(http)
        [claimed] = await worker.claim()
        await worker.finish(claimed)
        with requests_logged() as lines:
            await http.get(f"/tasks/{task['id']}/events")
    assert [(line["route"], line["status"]) for line in lines] == [("/tasks/{task_id}/events", 200)]


async def test_no_query_is_logged_and_no_line_is_without_bounds(door: Door) -> None:
    """Queries carry stream tokens."""
    async with client_of(door) as http:
        with requests_logged() as lines:
            for path in ("/tasks/x/events", "/tasks/x", "/events", "/nope", "/tasks/" + "y" * 3000):
                await http.get(f"{path}?token=secret-token&last_event_id=1-1")
    assert len(lines) == 5
    assert "secret-token" not in str(lines)
    assert len(str(lines)) < 3000


async def test_probes_are_no_lines_and_without_the_setting_nothing_is(
    door: Door, gateway_of: Callable[..., Door]
) -> None:
    async with client_of(door) as http, client_of(gateway_of()) as quiet:
        with requests_logged() as lines:
            for path in ("/livez", "/readyz", "/healthz", "/metrics"):
                await http.get(path)
            await submit(quiet)
    assert lines == []


async def test_a_refusal_is_logged_with_its_request(http: httpx.AsyncClient) -> None:
    with structlog.testing.capture_logs() as lines:
        hot = await http.get("/tasks/nope", headers={"X-Request-ID": "r-1", "traceparent": PARENT})
        cold = await http.get("/tasks?limit=nope", headers={"X-Request-ID": "r-2"})
    assert (hot.status_code, cold.status_code) == (404, 400)
    assert [(line["event"], line["problem"], line["request_id"]) for line in lines] == [
        ("refused", "not-found", "r-1"),
        ("refused", "bad-request", "r-2"),
    ]
    assert (lines[0]["task_id"], lines[0]["tenant"]) == ("nope", lines[1]["tenant"])
    assert (lines[0]["trace_id"], lines[0]["span_id"]) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert not lines[1].keys() & {"task_id", "trace_id", "span_id"}


async def test_without_an_exporter_a_line_has_the_trace_of_its_client(door: Door) -> None:
    """As the lines of its attempts have."""
    async with client_of(door) as http:
        with requests_logged() as lines:
            for headers in ([("traceparent", PARENT)], [("traceparent", "nonsense")], [("traceparent", PARENT)] * 2):
                await http.get("/tasks/x", headers=headers)
    assert [line.get("trace_id") for line in lines] == ["0af7651916cd43dd8448eb211c80319c", None, None]
    assert [line.get("span_id") for line in lines] == ["b7ad6b7169203331", None, None]


@pytest.mark.parametrize("path", ["/tasks/x", "/queues"])
async def test_a_fault_of_ours_is_logged_with_its_request_whoever_answers(
    door: Door, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(door.gateway, "status", fail)
    monkeypatch.setattr(door.gateway.queues, "view", fail)
    async with client_of(door) as http:
        with structlog.testing.capture_logs() as lines:
            answer = await http.get(path, headers={"X-Request-ID": "mine-1", "X-Tenant": "acme"})
    assert answer.status_code == 500
    [line] = [line for line in lines if line["event"].startswith("request failed")]
    assert (line["request_id"], line["tenant"], line["path"]) == ("mine-1", "acme", path)

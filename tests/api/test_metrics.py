"""`GET /metrics`: what it counts, that clients cannot make it grow, and that several processes tell one story."""

from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.door import Door
from taskgate import metrics
from tests.api.conftest import Worker, client_of, submit

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(http: httpx.AsyncClient) -> Samples:
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == metrics.CONTENT_TYPE
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0)


async def test_what_is_accepted_and_waits_is_told_by_queue_and_type(http: httpx.AsyncClient) -> None:
    await submit(http)
    await submit(http, delay_s=100)

    found = await scraped(http)

    assert value(found, "taskgate_tasks_submitted_total", queue="default", type="echo") == 2
    assert value(found, "taskgate_queue_depth", queue="default", state="queued") == 1
    assert value(found, "taskgate_queue_depth", queue="default", state="scheduled") == 1
    assert value(found, "taskgate_workers", state="ready") == 1
    assert value(found, "taskgate_redis_up") == 1


async def test_replays_are_no_new_tasks(http: httpx.AsyncClient) -> None:
    body = {"type": "echo", "payload": {"text": "once"}, "unique_key": "only"}
    for _ in range(2):
        assert (await http.post("/tasks", json=body, headers={"Idempotency-Key": "k"})).status_code == 202
    assert (await http.post("/tasks", json=body)).status_code == 202

    found = await scraped(http)

    assert value(found, "taskgate_tasks_submitted_total", queue="default", type="echo") == 1
    assert value(found, "taskgate_submissions_replayed_total", by="idempotency_key") == 1
    assert value(found, "taskgate_submissions_replayed_total", by="unique_key") == 1


async def test_refusals_are_told_by_the_limit_that_ran_out_or_by_problem(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    async with client_of(gateway_of(queue_limit_tasks=1)) as http:
        await submit(http)
        refused = await http.post("/tasks", json={"type": "echo", "payload": {"text": "too many"}})
        assert refused.status_code == 429
        assert (await http.post("/tasks", json={"type": "nobody's", "payload": {}})).status_code == 422
        assert (await http.get("/tasks/none")).status_code == 404

        found = await scraped(http)

    assert value(found, "taskgate_tasks_rejected_total", reason="queue-tasks") == 1
    assert value(found, "taskgate_tasks_rejected_total", reason="validation-error") == 1
    assert value(found, "taskgate_requests_refused_total", problem="queue-full") == 1
    assert value(found, "taskgate_requests_refused_total", problem="not-found") == 1


async def test_requests_are_told_by_the_template_of_their_route(http: httpx.AsyncClient) -> None:
    task = await submit(http)
    for _ in range(2):
        await http.get(f"/tasks/{task['id']}")
    await http.get(f"/tasks/{task['id']}/result")
    await http.get("/nowhere/at/all")
    await http.request("BREW", "/tasks")

    found = await scraped(http)

    def count(method: str, route: str, status: str) -> float:
        return value(found, "http_server_request_duration_seconds_count", method=method, route=route, status=status)

    assert count("POST", "/tasks", "202") == 1
    assert count("GET", "/tasks/{task_id}", "200") == 2
    assert count("GET", "/tasks/{task_id}/result", "409") == 1
    assert count("GET", "other", "404") == 1
    assert count("other", "/tasks", "405") == 1
    assert value(found, "taskgate_status_cache_requests_total", result="hit") == 1


async def test_what_clients_name_gets_no_label_of_its_own(http: httpx.AsyncClient) -> None:
    for number in range(3):
        await submit(http, queue=f"made-up-{number}")

    found = await scraped(http)

    assert value(found, "taskgate_tasks_submitted_total", queue="other", type="echo") == 3
    assert value(found, "taskgate_queue_depth", queue="other", state="queued") == 3
    assert not [labels for _, labels in found if any("made-up" in said for _, said in labels)]

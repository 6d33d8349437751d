"""`GET /metrics`: what it counts, that clients cannot make it grow, and that several processes tell one story."""

import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.door import Door
from app.siblings import Siblings, _name
from taskgate import metrics
from taskgate.metrics import MOST_SERIES, Counter, Gauge, Histogram
from tests.api.conftest import Served, Worker, client_of, submit
from tests.conftest import Server, eventually
from tests.system.rig import children_of, command_of

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


async def test_requests_are_told_by_the_template_of_their_route(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    async with client_of(gateway_of(status_cache_ms=60_000)) as http:
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


async def test_old_values_of_queues_are_not_shown_without_redis(
    gateway_of: Callable[..., Door], own_server: Server
) -> None:
    door = gateway_of(redis_url=own_server.url)
    async with client_of(door) as http:
        worker = Worker(door.gateway.store)
        await worker.publish()
        await worker.beat()
        await submit(http)
        assert value(await scraped(http), "taskgate_queue_depth", queue="default", state="queued") == 1
        own_server.stop()
        found = await scraped(http)

    assert value(found, "taskgate_redis_up") == 0
    assert not [name for name, _ in found if name == "taskgate_queue_depth"]
    assert value(found, "taskgate_redis_errors_total", error="unavailable") > 0


async def test_a_stream_counts_while_it_is_open_and_its_events_by_name(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    [claimed] = await worker.claim()
    await worker.finish(claimed)
    await http.get(f"/tasks/{task['id']}/events")

    found = await scraped(http)

    assert value(found, "taskgate_sse_events_total", event="snapshot") == 1
    assert value(found, "taskgate_sse_events_total", event="end") == 1
    assert value(found, "taskgate_sse_streams") == 0
    route = {"method": "GET", "route": "/tasks/{task_id}/events", "status": "200"}
    assert value(found, "http_server_request_duration_seconds_count", **route) == 0


async def test_a_submission_that_a_fault_of_ours_ends_is_refused_too(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    door = gateway_of()
    monkeypatch.setattr(door.gateway, "submit", fail)
    async with client_of(door) as http:
        assert (await http.post("/tasks", json={"type": "echo", "payload": {}})).status_code == 500
        found = await scraped(http)

    assert value(found, "taskgate_tasks_rejected_total", reason="internal-error") == 1


async def test_what_may_be_refused_is_there_before_it_is(http: httpx.AsyncClient) -> None:
    """`rate` needs a sample before the first count."""
    found = await scraped(http)

    assert found["taskgate_tasks_rejected_total", frozenset({("reason", "queue-tasks")})] == 0
    assert found["taskgate_requests_refused_total", frozenset({("problem", "internal-error")})] == 0


async def test_the_key_is_asked_for(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(api_key="secret")) as http:
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers={"Authorization": "Bearer secret"})).status_code == 200


async def test_readyz_tells_a_line_for_each_check(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.readiness.WITHIN_S", 30)
    answer = await http.get("/readyz?verbose")

    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "[+]redis ok: written\n" in answer.text
    assert "[+]serving ok: accepting\n" in answer.text
    assert answer.text.splitlines()[-1] in ("readyz check passed", "readyz check failed")


def test_text_survives_whatever_a_label_holds() -> None:
    odd = 'a"b\\c\nd{}, é'
    counter, histogram = Counter("c_total", "a \\ b\nc", "x"), Histogram("h", "h", "x", buckets=(0.5, 1.0))
    counter.add(odd, by=0.25)
    for seconds in (0.5, 0.6, 7):
        histogram.observe(seconds, odd)

    text = metrics.text([counter, histogram]).decode()
    found = {
        (sample.name, sample.labels.get("le")): (sample.labels["x"], sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    assert found == {
        ("c_total", None): (odd, 0.25),
        ("h_bucket", "0.5"): (odd, 1),
        ("h_bucket", "1"): (odd, 2),
        ("h_bucket", "+Inf"): (odd, 3),
        ("h_sum", None): (odd, 8.1),
        ("h_count", None): (odd, 3),
    }


@pytest.mark.parametrize(
    "family", [Counter("c", "c", "x"), Gauge("g", "g", "x"), Histogram("h", "h", "x", buckets=(1,))]
)
def test_no_metric_has_more_than_so_many_combinations(family: Counter | Gauge | Histogram) -> None:
    for number in range(MOST_SERIES + 10):
        match family:
            case Counter():
                family.add(str(number))
            case Gauge():
                family.set(str(number), to=1)
            case Histogram():
                family.observe(0.1, str(number))

    assert len(family.values) == MOST_SERIES + 1
    if not isinstance(family, Gauge):
        assert family.values["other",] == (10 if isinstance(family, Counter) else [10, 0, pytest.approx(1)])


def test_what_a_dead_sibling_has_counted_stays_and_what_it_had_does_not(tmp_path: Path) -> None:
    """Else the sum would fall, which Prometheus takes for a restart."""
    counter, gauge = Counter("c_total", "c", "x"), Gauge("g", "g")
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / f"{dead.pid}-17").write_text('{"c_total":[[["a"],4]],"g":[[[],7]],"unknown":[]}')
    (tmp_path / f"{os.getppid()}-17").write_text('{"c_total":[[["a"],1]],"g":[[[],9]]}')  # another had its pid before
    (tmp_path / _name(os.getppid())).write_text('{"c_total":[[["a"],1],[["b"],2]],"g":[[[],3]]}')
    counter.add("a")
    gauge.set(to=1)

    added = {each.name: each.values for each in Siblings(tmp_path).added_up([counter, gauge])}

    assert added == {"c_total": {("a",): 7, ("b",): 2}, "g": {(): 4}}
    assert (counter.values, gauge.values) == ({("a",): 1}, {(): 1})


def test_a_half_file_or_no_folder_keeps_nothing_from_being_told(tmp_path: Path) -> None:
    """Until it is there again, with what is told next."""
    counter = Counter("c_total", "c")
    counter.add()
    siblings = Siblings(tmp_path / "told")
    assert [each.values for each in siblings.added_up([counter])] == [{(): 1}]
    (tmp_path / "told" / "1-17").write_text('{"c_total":[[[],')
    assert [each.values for each in siblings.added_up([counter])] == [{(): 1}]
    shutil.rmtree(tmp_path / "told")
    assert [each.values for each in siblings.added_up([counter])] == [{(): 1}]
    assert [path.name for path in (tmp_path / "told").iterdir()] == [_name(os.getpid())]


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_several_processes_answer_for_all_and_a_killed_one_takes_nothing_along(
    serve: Callable[..., Awaitable[Served]], worker: Worker
) -> None:
    served = await serve(gateway_processes=2)
    timeout = httpx.Timeout(30)
    for _ in range(12):
        async with httpx.AsyncClient(
            base_url=served.url, timeout=timeout
        ) as http:  # a connection each: they take turns
            await submit(http)

    async def submitted() -> float:
        async with httpx.AsyncClient(base_url=served.url, timeout=timeout) as http:
            return value(await scraped(http), "taskgate_tasks_submitted_total", queue="default", type="echo")

    await eventually(submitted, lambda count: count == 12, within_s=60)
    shown = [await submitted() for _ in range(6)]
    assert shown == [12] * 6

    async def serving() -> list[int]:
        return [pid for pid in children_of(served.process.pid) if "spawn_main" in command_of(pid)]

    victim, *_ = await serving()
    os.kill(victim, signal.SIGKILL)
    await eventually(serving, lambda pids: len(pids) == 2 and victim not in pids, within_s=60)
    assert await submitted() == 12
    assert await served.stop() == 0

"""Spans of the gateway, and the trace context that goes with a task; an exporter in memory stands for the collector."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from app.api import build
from app.door import Door
from app.gateway import Gateway
from taskgate import settings as environment
from taskgate.contract.connection import connect
from taskgate.tracing import Traces
from tests.api.conftest import Worker, client_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ECHO = {"type": "echo", "payload": {"text": "secret-payload"}}


class Collector(InMemorySpanExporter):
    def named(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.get_finished_spans() if span.name == name]
        return span

    def names(self) -> list[str]:
        return [span.name for span in self.get_finished_spans()]


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
async def traced(redis_url: str, collector: Collector, worker: Worker) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway that exports."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(collector))
    settings = environment.load({}, redis_url=redis_url, tenant_header="X-Tenant", access_log=True)
    gateway = Gateway(settings, connect(settings, "gateway"), traces=Traces(provider))
    async with client_of(Door(gateway, build(gateway))) as http:
        yield http
    await gateway.close()


def shown(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_submission_is_a_request_with_its_way_into_the_queue(
    traced: httpx.AsyncClient, collector: Collector, worker: Worker
) -> None:
    sent = {"traceparent": PARENT, "tracestate": "a=1,b=2", "X-Tenant": "acme", "X-Request-ID": "r-1"}
    with structlog.testing.capture_logs() as lines:
        answer = await traced.post("/tasks", json=ECHO, headers=sent)
    request, send = collector.named("POST /tasks"), collector.named("send default")
    assert request.context is not None
    assert send.context is not None
    assert request.parent is not None
    assert send.parent is not None
    assert (request.kind, send.kind) == (SpanKind.SERVER, SpanKind.PRODUCER)
    assert f"{request.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    assert send.parent.span_id == request.context.span_id
    about, task_id = shown(request), answer.json()["id"]
    assert (about["http.route"], about["http.response.status_code"]) == ("/tasks", 202)
    assert (about["taskgate.tenant"], about["taskgate.request_id"]) == ("acme", "r-1")
    assert about["messaging.message.id"] == shown(send)["messaging.message.id"] == task_id
    assert shown(send)["messaging.destination.name"] == "default"
    [line] = lines
    assert (line["trace_id"], line["span_id"]) == (PARENT.split("-")[1], f"{request.context.span_id:016x}")
    assert answer.headers["traceresponse"] == f"00-{PARENT.split('-')[1]}-{request.context.span_id:016x}-01"
    [claimed] = await worker.claim()
    assert claimed.spec.traceparent == f"00-{PARENT.split('-')[1]}-{send.context.span_id:016x}-01"
    assert claimed.spec.tracestate == "a=1,b=2"


async def test_every_route_is_a_span_and_probes_are_none(traced: httpx.AsyncClient, collector: Collector) -> None:
    task_id = (await traced.post("/tasks", json=ECHO)).json()["id"]
    collector.clear()
    for path in (f"/tasks/{task_id}", f"/tasks/{task_id}/result", "/tasks", "/nope", "/livez", "/readyz", "/metrics"):
        await traced.get(path)
    assert collector.names() == ["GET /tasks/{task_id}", "GET /tasks/{task_id}/result", "GET /tasks", "GET"]
    assert all(span.parent is None and span.kind is SpanKind.SERVER for span in collector.get_finished_spans())


async def test_requests_side_by_side_have_each_their_own_trace(traced: httpx.AsyncClient, collector: Collector) -> None:
    parents = [f"00-{number:032x}-b7ad6b7169203331-01" for number in range(1, 9)]
    await asyncio.gather(*[traced.post("/tasks", json=ECHO, headers={"traceparent": one}) for one in parents])
    spans = collector.get_finished_spans()
    requests = {span.context.span_id: span for span in spans if span.kind is SpanKind.SERVER and span.context}
    sends = [span for span in spans if span.kind is SpanKind.PRODUCER]
    assert len(requests) == len(sends) == 8
    for send in sends:
        assert send.parent is not None
        assert send.context is not None
        request = requests[send.parent.span_id]
        assert request.context is not None
        assert request.context.trace_id == send.context.trace_id
        assert shown(request)["messaging.message.id"] == shown(send)["messaging.message.id"]


async def test_no_token_payload_or_header_gets_into_a_span(traced: httpx.AsyncClient, collector: Collector) -> None:
    secret = {"Authorization": "Bearer secret-key", "Cookie": "secret-cookie", "Idempotency-Key": "secret-idempotency"}
    task = await traced.post("/tasks?token=secret-token", json=ECHO | {"metadata": {"a": "secret"}}, headers=secret)
    for path in (f"/tasks/{task.json()['id']}", "/tasks/x/events", "/events", "/nope"):
        await traced.get(f"{path}?token=secret-token&fields=secret", headers=secret)
    await traced.post("/tasks", content=b'{"type": "echo", "payload": "secret', headers={"Content-Type": "text/json"})
    told = [span.to_json() for span in collector.get_finished_spans()]
    assert len(told) >= 7
    assert "secret" not in "".join(told)


async def test_what_was_refused_or_failed_says_so(traced: httpx.AsyncClient, collector: Collector) -> None:
    key = {"Idempotency-Key": "k"}
    first = await traced.post("/tasks", json=ECHO, headers=key)
    again = await traced.post("/tasks", json=ECHO, headers=key)
    other = await traced.post("/tasks", json=ECHO | {"priority": 1}, headers=key)
    assert (first.status_code, again.json()["id"], other.status_code) == (202, first.json()["id"], 422)
    sends = [span for span in collector.get_finished_spans() if span.kind is SpanKind.PRODUCER]
    assert [shown(span).get("error.type") for span in sends] == [None, None, "IdempotencyConflict"]
    assert [shown(span)["messaging.message.id"] for span in sends[:2]] == [first.json()["id"]] * 2
    assert [span.status.status_code for span in sends] == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (PARENT, PARENT),
        (PARENT[:-2] + "00", PARENT[:-2] + "00"),
        ("cc" + PARENT[2:], PARENT),
        ("cc" + PARENT[2:] + "-more", PARENT),
        (PARENT + "-more", ""),
        ("ff" + PARENT[2:], ""),
        (PARENT.upper(), ""),
        (PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), ""),
        (PARENT.replace("b7ad6b7169203331", "0" * 16), ""),
        (PARENT[:-1], ""),
        ("", ""),
    ],
)
async def test_without_an_exporter_a_well_formed_context_goes_with_the_task(
    http: httpx.AsyncClient, worker: Worker, sent: str, stored: str
) -> None:
    state = "v@x=1, w=a b,"
    answer = await http.post("/tasks", json=ECHO, headers={"traceparent": sent, "tracestate": state})
    assert "traceresponse" not in answer.headers
    [claimed] = await worker.claim()
    assert (claimed.spec.traceparent, claimed.spec.tracestate) == (stored, "v@x=1,w=a b" if stored else "")


@pytest.mark.parametrize("state", ["a", "A=1", "a=\t", "a=1;=,=", "a=" + "x" * 257, "a=1," * 200, "é=1", "a=\x7f"])
async def test_a_state_that_is_none_is_left_out_and_its_parent_is_not(
    http: httpx.AsyncClient, worker: Worker, state: str
) -> None:
    headers = [(b"traceparent", PARENT.encode()), (b"tracestate", state.encode())]
    await http.post("/tasks", json=ECHO, headers=headers)
    [claimed] = await worker.claim()
    assert (claimed.spec.traceparent, claimed.spec.tracestate) == (PARENT, "")


async def test_of_two_parents_none_is_believed_and_states_are_one_list(http: httpx.AsyncClient, worker: Worker) -> None:
    states = [(b"tracestate", b"a=1"), (b"tracestate", b"b=2")]
    await http.post("/tasks", json=ECHO, headers=[(b"traceparent", PARENT.encode()), *states])
    await http.post("/tasks", json=ECHO, headers=[(b"traceparent", PARENT.encode())] * 2)
    first, second = sorted(await worker.claim(2), key=lambda task: task.id)
    assert (first.spec.traceparent, first.spec.tracestate) == (PARENT, "a=1,b=2")
    assert (second.spec.traceparent, second.spec.tracestate) == ("", "")


async def test_nothing_is_stored_where_nobody_sends_a_context(
    gateway_of: Callable[..., Door], http: httpx.AsyncClient, worker: Worker, redis_client: Any
) -> None:
    answer = await http.post("/tasks", json=ECHO)
    spec = await redis_client.hget(f"tg:{{0}}:task:{answer.json()['id']}", "spec")
    assert b"trace" not in spec


def test_without_an_exporter_nothing_that_makes_spans_is_loaded() -> None:
    """Free: the processes do not even import it. (redis-py imports the SDK's metrics where there is one.)"""
    probe = """
import sys
from taskgate import tracing
import app.main, workers.supervisor
off = [{}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "x"}]
off += [{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, {"OTEL_SERVICE_NAME": "x"}]
assert [tracing.start("gateway", each) for each in off] == [None] * 4
print(*[name for name in sys.modules if name.startswith(("opentelemetry.sdk.trace", "opentelemetry.exporter"))])
"""
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []

"""Traces of the whole way, told to a real collector: request, queue, attempt, and what handlers add."""

import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import structlog

from taskgate import tracing
from tests.conftest import eventually
from tests.system.otlp import Collector, collecting, facts
from tests.system.rig import Rig

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def told(read: Callable[[], Any]) -> Any:
    async def look() -> Any:
        return read()

    return await eventually(look, bool, within_s=60)


def place(span: Any) -> str:
    """Its traceparent up to the flags."""
    return f"00-{span.trace_id.hex()}-{span.span_id.hex()}-"


@pytest.mark.full
@pytest.mark.parametrize("below", [False, True], ids=["linked", "parent"])
async def test_a_request_its_queue_and_its_handlers_are_told_as_they_hang_together(rig: Rig, below: bool) -> None:
    with collecting() as collector:
        rig.settings |= {
            "TASKGATE_HANDLERS": "tests.system.trace_jobs",
            "TASKGATE_TRACE_PARENT": str(below).lower(),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        }
        await rig.worker()
        await rig.gateway()
        answer = await rig.http.post(
            "/tasks",
            json={"type": "traced.sync", "payload": {"text": "secret-payload"}},
            headers={"traceparent": PARENT, "tracestate": "a=1"},
        )
        task = await rig.ended(answer.json()["id"])
        assert task["status"] == "succeeded", task
        result = (await rig.http.get(task["result_url"])).json()
        await told(lambda: {"own sync", "own async"} <= {span.name for span in collector.spans})
        [attempt] = await told(lambda: collector.about(task["id"], "process default"))
        [request] = await told(lambda: collector.about(task["id"], "POST /tasks"))
        [send] = await told(lambda: collector.about(task["id"], "send default"))
        assert request.trace_id.hex() == PARENT.split("-")[1]
        assert (request.parent_span_id.hex(), send.parent_span_id) == (PARENT.split("-")[2], request.span_id)
        check_follows(attempt, send, below=below)
        assert result["traceparent"].startswith(place(attempt))
        assert result["tracestate"] == ("a=1" if below else "")
        assert facts(attempt)["taskgate.outcome"] == "succeeded"
        assert facts(attempt)["taskgate.request_id"] == answer.headers["x-request-id"]
        own = collector.named("own sync")
        assert (own.trace_id, own.parent_span_id) == (attempt.trace_id, attempt.span_id)
        await check_submitted(collector, attempt, below=below)
        names = {collector.services[span.span_id] for span in (request, send, attempt)}
        assert names == {"taskgate-gateway", "taskgate-worker"}
        await check_failures(rig, collector)
        assert b"secret" not in collector.raw


def check_follows(attempt: Any, send: Any, *, below: bool) -> None:
    if below:
        assert (attempt.trace_id, attempt.parent_span_id) == (send.trace_id, send.span_id)
    else:
        [link] = attempt.links
        assert (link.trace_id, link.span_id, attempt.parent_span_id) == (send.trace_id, send.span_id, b"")
        assert attempt.trace_id != send.trace_id


async def check_submitted(collector: Collector, parent: Any, *, below: bool) -> None:
    """What the handler has submitted follows from its own run."""
    own = collector.named("own async")

    def processed() -> list[Any]:
        return [span for span in collector.spans if span.span_id == own.parent_span_id]

    [attempt] = await told(processed)
    assert facts(attempt)["taskgate.task_type"] == "traced.async"
    check_follows(attempt, parent, below=below)


async def check_failures(rig: Rig, collector: Collector) -> None:
    """An attempt that raises, and one whose process dies: with the kind of error, without its words."""
    for task_type, kind in (("traced.fails", "exception"), ("traced.dies", "crash")):
        task_id = await rig.submit(task_type, {"text": "secret-payload"})
        assert (await rig.ended(task_id))["status"] == "failed"
        [attempt] = await told(partial(collector.about, task_id, "process default"))
        assert facts(attempt)["error.type"] == kind
        assert attempt.status.code == attempt.status.STATUS_CODE_ERROR
        assert not attempt.events


@pytest.mark.full
def test_no_collector_holds_up_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the request and never answers; the exporter alone would wait for longer than this test may take."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100000")
        traces = tracing.start("gateway")
        assert traces is not None
        traces.tracer.start_span("request").end()
        traces.close()
        assert "taskgate-traces" in [thread.name for thread in threading.enumerate()], "it waits, and nobody for it"


def test_a_wrong_variable_of_opentelemetry_keeps_nobody_from_work() -> None:
    no_exporter = {"OTEL_TRACES_EXPORTER": "otlp,nope"}
    no_protocol = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "nope"}
    for wrong, named in ((no_exporter, "nope"), (no_protocol, "otlp")):
        with structlog.testing.capture_logs() as said:
            assert tracing.start("gateway", wrong) is None
        assert [(line["event"], line["exporter"]) for line in said] == [("no traces: there is no such exporter", named)]


def test_several_exporters_are_named_as_opentelemetry_has_it() -> None:
    with structlog.testing.capture_logs() as said:
        traces = tracing.start("gateway", {"OTEL_TRACES_EXPORTER": "otlp, console"})
    assert traces is not None
    traces.close()
    assert [line["exporter"] for line in said] == ["OTLPSpanExporter, ConsoleSpanExporter"]

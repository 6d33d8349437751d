"""Spans of attempts, and what log lines about them carry; an exporter in memory stands for the collector."""

import time
from typing import Any

import msgspec
import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import StatusCode

from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Claimed, Finish, HandBack, TaskSpec
from taskgate.tracing import TraceContext, Traces
from workers import endings
from workers.holdings import Holding
from workers.traces import AttemptTraces
from workers.wire import Submitted

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def traces(collector: InMemorySpanExporter, *, below: bool = False, sampler: Sampler | None = None) -> AttemptTraces:
    provider = TracerProvider(shutdown_on_exit=False, sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(collector))
    return AttemptTraces(Traces(provider), worker_id="w1", below=below)


def claimed(traceparent: str = "", *, epoch: int = 1) -> Claimed:
    spec = TaskSpec(
        id=new_task_id(), type="noop", queue="mail", tenant="acme", request_id="r-1", traceparent=traceparent
    )
    return Claimed(
        partition=0,
        epoch=epoch,
        attempt=epoch,
        created_ms=1000,
        claimed_ms=1250,
        spec=spec,
        payload=b"{}",
        checkpoint=b"",
    )


def end(spans: AttemptTraces, task: Claimed, item: Finish | HandBack, status: str) -> None:
    spans.ends(Holding(task), item)
    spans.ended(Holding(task), status)


def only(collector: InMemorySpanExporter) -> ReadableSpan:
    [span] = collector.get_finished_spans()
    return span


def test_an_attempt_is_linked_with_its_submission_or_below_it(collector: InMemorySpanExporter) -> None:
    for below in (False, True):
        collector.clear()
        spans, task = traces(collector, below=below), claimed(PARENT)
        context = spans.begin(task, pid=7)
        assert spans.of(task) == context
        end(spans, task, Finish(id=task.id, epoch=1, outcome="succeeded"), "succeeded")
        span = only(collector)
        assert span.context is not None
        trace_id, span_id = f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
        assert context == TraceContext(f"00-{trace_id}-{span_id}-{span.context.trace_flags:02x}", "")
        links = [f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-01" for link in span.links]
        assert (span.parent is not None, links) == (below, [] if below else [PARENT])
        assert (trace_id == PARENT.split("-")[1]) == below


@pytest.mark.parametrize("below", [False, True], ids=["linked", "parent"])
@pytest.mark.parametrize("flags", ["00", "01"])
@pytest.mark.parametrize("sampler", [None, ParentBased(TraceIdRatioBased(0.0)), ParentBased(ALWAYS_ON)])
def test_an_attempt_is_told_where_its_submission_was(
    collector: InMemorySpanExporter, sampler: Sampler | None, flags: str, below: bool
) -> None:
    """Else a link would lead to a span that nobody has exported, and most of those that were to no attempt."""
    spans, task = traces(collector, below=below, sampler=sampler), claimed(PARENT[:-2] + flags)
    context = spans.begin(task, pid=7)
    end(spans, task, Finish(id=task.id, epoch=1, outcome="succeeded"), "succeeded")
    assert len(collector.get_finished_spans()) == int(flags)
    assert int(context.parent[-2:]) % 2 == int(flags), "and so is what its handler calls"


def test_a_ratio_of_its_own_decides_as_for_its_submission(collector: InMemorySpanExporter) -> None:
    """By that trace's id; what hangs with nothing is decided by its own."""
    low, high = f"00-{1:032x}-b7ad6b7169203331-01", f"00-{(1 << 64) - 1:032x}-b7ad6b7169203331-01"
    spans = traces(collector, sampler=TraceIdRatioBased(0.5))
    for traceparent in [low, high] * 10:
        task = claimed(traceparent)
        spans.begin(task, pid=7)
        end(spans, task, Finish(id=task.id, epoch=1, outcome="succeeded"), "succeeded")
    assert [span.links[0].context.trace_id for span in collector.get_finished_spans()] == [1] * 10


def test_what_hangs_with_nothing_is_sampled_by_itself(collector: InMemorySpanExporter) -> None:
    for ratio, told in ((0.0, 0), (1.0, 1)):
        spans, task = traces(collector, sampler=ParentBased(TraceIdRatioBased(ratio))), claimed()
        spans.begin(task, pid=7)
        end(spans, task, Finish(id=task.id, epoch=1, outcome="succeeded"), "succeeded")
        assert len(collector.get_finished_spans()) == told


def test_an_attempt_says_what_it_was_and_became_without_a_word_of_its_error(collector: InMemorySpanExporter) -> None:
    spans, task = traces(collector), claimed()
    spans.begin(task, pid=7)
    error = msgspec.json.encode({"kind": "exception", "message": "secret"})
    end(spans, task, Finish(id=task.id, epoch=1, outcome="retry", error=error), "retrying")
    span = only(collector)
    assert (span.name, span.status.status_code, span.events) == ("process mail", StatusCode.ERROR, ())
    assert dict(span.attributes or {}) == {
        "error.type": "exception",
        "messaging.destination.name": "mail",
        "messaging.message.body.size": 2,
        "messaging.message.id": task.id,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.system": "redis",
        "process.pid": 7,
        "taskgate.attempt": 1,
        "taskgate.outcome": "retrying",
        "taskgate.queue_wait_ms": 250,
        "taskgate.request_id": "r-1",
        "taskgate.task_type": "noop",
        "taskgate.tenant": "acme",
        "taskgate.worker_id": "w1",
    }


def test_a_span_ends_when_the_attempt_did_however_late_the_store_answers(collector: InMemorySpanExporter) -> None:
    spans, task = traces(collector), claimed()
    spans.begin(task, pid=7)
    spans.ends(Holding(task), Finish(id=task.id, epoch=1, outcome="succeeded"))
    left_ns = time.time_ns()
    while time.time_ns() <= left_ns:
        continue
    spans.ended(Holding(task), "succeeded")
    ended_ns = only(collector).end_time
    assert ended_ns is not None
    assert ended_ns <= left_ns


def test_what_no_child_has_received_is_no_span_and_what_was_taken_away_is_lost(
    collector: InMemorySpanExporter,
) -> None:
    spans, task, again = traces(collector), claimed(), claimed(epoch=2)
    spans.begin(task, pid=7)
    end(spans, task, HandBack(id=task.id, epoch=1, ran=False, reason="taken_back"), "queued")
    assert collector.get_finished_spans() == ()
    spans.begin(again, pid=7)
    spans.ended(Holding(again), "lost")
    assert (only(collector).attributes or {})["error.type"] == "lost"
    spans.ended(Holding(again), "lost")
    assert len(collector.get_finished_spans()) == 1


def test_a_log_line_about_an_attempt_says_whose_it_is() -> None:
    holding = Holding(claimed(PARENT))
    with structlog.testing.capture_logs() as lines:
        structlog.get_logger().info("x", **holding.facts())
    holding.trace = TraceContext(PARENT.replace("b7ad", "c7ad"))
    assert lines == [
        {
            "event": "x",
            "log_level": "info",
            "task_id": holding.id,
            "task_type": "noop",
            "attempt": 1,
            "tenant": "acme",
            "request_id": "r-1",
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
            "span_id": "b7ad6b7169203331",
        }
    ]
    assert holding.facts()["span_id"] == "c7ad6b7169203331", "its own span, where there is one"
    assert "trace_id" not in Holding(claimed()).facts()


@pytest.mark.parametrize("own", [None, TraceContext(PARENT.replace("b7ad", "c7ad"), "a=1")])
def test_what_a_handler_submits_stays_in_its_request_and_trace(own: TraceContext | None) -> None:
    child: dict[str, Any] = dict.fromkeys(Submitted.__struct_fields__)
    child |= {"id": new_task_id(), "type": "t", "payload": b"{}", "priority": 5, "delay_s": 0.0, "metadata": b""}
    parent = claimed(PARENT).spec
    made = endings.submission(Submitted(**child | {"on_conflict": "return"}), parent, {}, trace=own)
    spec = msgspec.json.decode(made.spec, type=TaskSpec)
    assert (spec.request_id, spec.parent, spec.tenant) == ("r-1", parent.id, "acme")
    assert (spec.traceparent, spec.tracestate) == (own or (PARENT, ""))

"""Handlers that have spans of their own, exported from their child as any program would."""

import os
import signal
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from taskgate import Attempt, child_start, handler


@child_start
def export() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def _own(name: str) -> None:
    with trace.get_tracer("jobs").start_as_current_span(name):
        pass


@handler("traced.sync")
def in_a_process(payload: dict[str, str], attempt: Attempt) -> dict[str, Any]:
    _own("own sync")
    attempt.submit("traced.async", {})
    return {"traceparent": attempt.traceparent, "tracestate": attempt.tracestate}


@handler("traced.async")
async def on_a_loop(payload: dict[str, str], attempt: Attempt) -> None:
    _own("own async")


@handler("traced.fails", max_attempts=1)
def fails(payload: dict[str, str]) -> None:
    raise ValueError(payload["text"])


@handler("traced.dies", max_attempts=1)
def dies(payload: dict[str, str]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

"""Calls of a program that uses OpenTelemetry are part of its trace; those of others send nothing."""

import subprocess
import sys
import time

from opentelemetry.sdk.trace import TracerProvider

from taskgate.client import http
from taskgate.client.steps import Open, Send


def test_a_call_within_a_span_is_part_of_its_trace() -> None:
    send = Send("GET", "/tasks", until=time.monotonic() + 10)
    assert "traceparent" not in http.request_of(send, 5)["headers"]
    with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("work") as span:
        for said in (http.request_of(send, 5), http.stream_of(Open("/events", [], {}, 5), 5)):
            context = span.get_span_context()
            assert said["headers"]["traceparent"].startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")


def test_a_program_without_opentelemetry_does_not_load_it() -> None:
    probe = (
        "import sys, taskgate; from taskgate.client import trace\n"
        "assert trace.headers() == {}\n"
        "print(*[name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []

"""The trace that a call is part of, where the program that makes it uses OpenTelemetry."""

import sys


def headers() -> dict[str, str]:
    """`traceparent` and `tracestate` of the current span; nothing is imported for it."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found

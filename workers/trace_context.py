"""In a child: what a task's own spans hang below, where its handlers use OpenTelemetry."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workers.wire import Task


def enter(task: Task) -> Any:
    """Make the task's span the current one; a token for `leave`, None where nobody would see it."""
    if not task.traceparent or "opentelemetry.context" not in sys.modules:
        return None
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": task.traceparent, "tracestate": task.tracestate}
    return context.attach(TraceContextTextMapPropagator().extract(carrier))


@contextmanager
def entered(task: Task) -> Iterator[None]:
    token = enter(task)
    try:
        yield
    finally:
        if token is not None:
            from opentelemetry import context

            context.detach(token)

"""Spans of the gateway: one a request, and within a submission one for the task on its way into its queue."""

from collections.abc import Awaitable
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from app.access_log import CLIENT_GONE, PROBES
from app.errors import Problem
from app.observers import NO_ROUTE, SHOWN_CHARS, Observed
from taskgate.contract.models import Accepted
from taskgate.tracing import TraceContext, Traces, context_in

if TYPE_CHECKING:
    from opentelemetry.trace import Span

T = TypeVar("T")

_request: ContextVar["Span | None"] = ContextVar("_request", default=None)


class RequestTraces:
    """An Observer. Nothing of a query, a body or a header but the user agent gets into a span."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self.close = traces.close

    def begin(self, request: Observed, headers: dict[bytes, bytes]) -> None:
        from opentelemetry.trace import SpanKind

        scope = request.scope
        if scope["path"] in PROBES:
            _request.set(None)
            return
        attributes: dict[str, str] = {
            "http.request.method": request.method,
            "url.path": scope["path"][:SHOWN_CHARS],
            "url.scheme": scope["scheme"],
            "taskgate.request_id": request.request_id,
        }
        if client := scope.get("client"):
            attributes["client.address"] = client[0]
        if agent := headers.get(b"user-agent"):
            attributes["user_agent.original"] = agent[:SHOWN_CHARS].decode("latin-1")
        request.span = self._traces.tracer.start_span(
            request.method,
            context=self._traces.entered(context_in(headers)),
            kind=SpanKind.SERVER,
            attributes=attributes,
        )
        _request.set(request.span)

    def __call__(self, request: Observed, seconds: float) -> None:
        span: Span | None = request.span
        if span is None:
            return
        if request.route != NO_ROUTE:
            span.update_name(f"{request.method} {request.route}")
            span.set_attribute("http.route", request.route)
        if request.tenant:
            span.set_attribute("taskgate.tenant", request.tenant)
        if request.task_id:
            span.set_attribute("messaging.message.id", request.task_id[:SHOWN_CHARS])
        status = request.status or CLIENT_GONE
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            _fail(span, str(status))
        span.end()

    def response(self, request: Observed) -> bytes:
        """The header `traceresponse`; empty where the request has no span."""
        return b"" if request.span is None else self._traces.context_of(request.span).parent.encode()

    def send(self, task_id: str, *, queue: str, task_type: str, size: int) -> "tuple[Span, TraceContext]":
        """The span of a submission, below that of its request, and what goes with the task."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        request = _request.get()
        span = self._traces.tracer.start_span(
            f"send {queue}",
            context=Context() if request is None else set_span_in_context(request, Context()),
            kind=SpanKind.PRODUCER,
            attributes={
                "messaging.system": "redis",
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": queue,
                "messaging.message.id": task_id,
                "messaging.message.body.size": size,
                "taskgate.task_type": task_type,
            },
        )
        return span, self._traces.context_of(span)


async def sending(span: "Span", decided: Awaitable[T]) -> T:
    """Wait for what becomes of a submission, and end its span with it."""
    try:
        outcome = await decided
    except BaseException as error:
        _fail(span, _kind(error))
        raise
    else:
        if isinstance(outcome, Exception):
            _fail(span, _kind(outcome))
        elif isinstance(outcome, Accepted):  # maybe under another id: an earlier one of the same key
            span.set_attribute("messaging.message.id", outcome.task_id)
        return outcome
    finally:
        span.end()


def _kind(error: BaseException) -> str:
    return error.slug if isinstance(error, Problem) else type(error).__name__


def _fail(span: "Span", kind: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)

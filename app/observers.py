"""What a request was and became, for those who count, log or trace it once it is over."""

from typing import Any, Protocol

from starlette.types import Scope

from taskgate.tracing import context_in

OBSERVED = "taskgate.observed"
"""Where the door leaves the Observed in the scope, while the request is under way."""

FACTS = "taskgate.facts"
"""Where the door leaves the facts of a request that failed on its way out: they make no cycle."""

NO_ROUTE = ""
SHOWN_CHARS = 200
"""Of what clients say, in lines and spans."""


class Observed:
    """One request: filled in by the door on its way."""

    __slots__ = ("method", "request_id", "route", "scope", "span", "started", "status", "task_id", "tenant")

    def __init__(self, scope: Scope, request_id: str, started: float) -> None:
        self.scope = scope
        self.request_id = request_id
        self.started = started
        """By time.perf_counter()."""
        self.method: str = scope["method"]
        self.span: Any = None
        """Of OpenTelemetry, where traces are exported."""
        self.route = NO_ROUTE
        """Its template, as `/tasks/{task_id}`; "" where none has taken it."""
        self.status = 0
        """0: its client had gone before there was an answer."""
        self.tenant = ""
        """"": it was refused before that was known."""
        self.task_id = ""
        """Of the one task that it is about; "": none, many, or not known."""


def facts(scope: Scope) -> dict[str, str]:
    """What log lines about a request carry while it is under way: whose it is, of which task and trace, where known."""
    observed: Observed | None = scope.get(OBSERVED)
    if observed is None:
        return {}
    task_id = observed.task_id or scope.get("path_params", {}).get("task_id", "")
    known = {"request_id": observed.request_id, "tenant": observed.tenant, "task_id": task_id[:SHOWN_CHARS]}
    return {name: value for name, value in known.items() if value} | trace_of(observed)


def trace_of(request: Observed) -> dict[str, str]:
    """Its span, or else the client's: the same that lines about its attempts have."""
    if request.span is not None:
        context = request.span.get_span_context()
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    given = [value for name, value in request.scope.get("headers", ()) if name == b"traceparent"]
    if len(given) != 1 or not (parent := context_in({b"traceparent": given[0]}).parent):
        return {}
    _, trace_id, span_id, _ = parent.split("-")
    return {"trace_id": trace_id, "span_id": span_id}


class Observer(Protocol):
    """Called once a request has been answered, a stream when it has ended; may not raise."""

    def __call__(self, request: Observed, seconds: float) -> None: ...

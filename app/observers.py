"""What a request was and became, for those who count, log or trace it once it is over."""

from typing import Any, Protocol

from starlette.types import Scope

OBSERVED = "taskgate.observed"
"""Where the door leaves the Observed in the scope, if anybody wants it."""

NO_ROUTE = ""


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
    """What log lines about a request carry while it is under way."""
    observed: Observed | None = scope.get(OBSERVED)
    return {} if observed is None else {"request_id": observed.request_id, "tenant": observed.tenant}


class Observer(Protocol):
    """Called once a request has been answered, a stream when it has ended; may not raise."""

    def __call__(self, request: Observed, seconds: float) -> None: ...

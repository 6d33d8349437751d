"""The access log: one line a request, with its route and never its query, where tokens may stand."""

import structlog

from app.observers import NO_ROUTE, Observed

logger = structlog.get_logger()

CLIENT_GONE = 499
"""As nginx has it: nobody was there to be answered any more."""

PROBES = frozenset({"/livez", "/readyz", "/healthz", "/metrics"})
SHOWN_CHARS = 200
"""Of what clients say, in lines and spans."""


def log_access(request: Observed, seconds: float) -> None:
    """An Observer."""
    if request.route in PROBES:
        return
    facts: dict[str, object] = {}
    if request.route == NO_ROUTE:
        facts["path"] = request.scope["path"][:SHOWN_CHARS]
    if request.task_id:
        facts["task_id"] = request.task_id[:SHOWN_CHARS]
    if request.span is not None:
        context = request.span.get_span_context()
        facts |= {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    client = request.scope.get("client")
    logger.info(
        "request",
        method=request.method,
        route=request.route or None,
        status=request.status or CLIENT_GONE,
        duration_ms=round(seconds * 1000, 3),
        request_id=request.request_id,
        tenant=request.tenant or None,
        client=client[0] if client else None,
        **facts,
    )

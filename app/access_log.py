"""The access log: one line a request, with its route and never its query, where tokens may stand."""

import structlog

from app.observers import NO_ROUTE, SHOWN_CHARS, Observed, trace_of

logger = structlog.get_logger()

CLIENT_GONE = 499
"""As nginx has it: nobody was there to be answered any more."""

PROBES = frozenset({"/livez", "/readyz", "/healthz", "/metrics"})


def log_access(request: Observed, seconds: float) -> None:
    """An Observer."""
    if request.route in PROBES:
        return
    facts: dict[str, object] = {}
    if request.route == NO_ROUTE:
        facts["path"] = request.scope["path"][:SHOWN_CHARS]
    if request.task_id:
        facts["task_id"] = request.task_id[:SHOWN_CHARS]
    facts |= trace_of(request)
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

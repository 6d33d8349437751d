"""Log lines under the names of the Elastic Common Schema, for `TASKGATE_LOG_FORMAT=ecs`."""

from typing import Any

VERSION = "8.17.0"

_NAMES = {
    "client": "client.address",
    "error": "error.message",
    "event": "message",
    "exception": "error.stack_trace",
    "exit_code": "process.exit_code",
    "level": "log.level",
    "logger": "log.logger",
    "method": "http.request.method",
    "path": "url.path",
    "pid": "process.pid",
    "request_id": "http.request.id",
    "span_id": "span.id",
    "status": "http.response.status_code",
    "timestamp": "@timestamp",
    "trace_id": "trace.id",
    "url": "url.full",
}
_OURS = "taskgate."


def renamed(_logger: Any, _method: str, fields: Any) -> dict[str, Any]:
    """What the schema has no name for stands below `taskgate.`."""
    line: dict[str, Any] = {_NAMES.get(name) or _OURS + name: value for name, value in fields.items()}
    if isinstance(duration_ms := fields.get("duration_ms"), int | float):
        line["event.duration"] = round(duration_ms * 1_000_000)
    return line | {"service.name": "taskgate", "ecs.version": VERSION}

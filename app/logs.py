"""`GET /tasks/{id}/logs`: what a task printed and logged, as JSON or as it was."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from app.errors import Problem
from app.routes import Parts, Who
from app.stream import is_event_id
from app.view import encode
from taskgate.contract.models import Event

router = APIRouter()

MOST = 1000
"""Entries of one answer: all that is kept of a task."""

_TEXT = "text/plain; charset=utf-8"
_HEADERS = {"Cache-Control": "no-store", "Vary": "Accept"}

ANSWER: dict[str, Any] = {
    "description": "Output",
    "content": {
        "text/plain": {"schema": {"type": "string"}},
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["items", "truncated", "dropped_bytes", "next"],
                "properties": {
                    "items": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["id", "attempt", "stream", "at", "text"],
                            "properties": {
                                "id": {"type": "string", "description": "its place among the task's events"},
                                "attempt": {"type": "integer"},
                                "stream": {"type": "string", "enum": ["stdout", "stderr", "log"]},
                                "at": {"type": "string", "format": "date-time"},
                                "text": {"type": "string"},
                                "dropped_bytes": {"type": "integer", "description": "lost right before it"},
                            },
                        },
                    },
                    "truncated": {"type": "boolean"},
                    "dropped_bytes": {"type": "integer", "description": "of the task's whole output"},
                    "next": {"type": ["string", "null"], "description": "`after` of the next page"},
                },
            }
        },
    },
}


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    truncated: bool
    dropped_bytes: int
    next: str | None


class _Said(msgspec.Struct):
    text: str
    dropped_bytes: int = 0


_said = msgspec.json.Decoder(_Said).decode


@router.get("/tasks/{task_id}/logs", tags=["tasks"], summary="What it printed and logged")
async def logs(
    request: Request,
    task_id: str,
    parts: Parts,
    who: Who,
    after: Annotated[str | None, Query(description="only what follows the entry of that id")] = None,
    limit: Annotated[int, Query(ge=1, description=f"entries, at most {MOST}")] = MOST,
) -> Response:
    """The newest 256 KiB (1,000 entries) of all attempts, oldest first; `dropped_bytes` tells of the rest.

    `Accept: text/plain` gets the text alone. The same entries come as `log` events in the task's stream.
    """
    if after is not None and not is_event_id(after):
        raise Problem("bad-request", "`after` is the id of an entry.")
    await parts.snapshots.fresh(task_id, who.tenant)
    limit = min(limit, MOST)
    found, lost = await parts.store.output(task_id, after=after or "0-0", count=limit + 1)
    shown = found[:limit]
    if _wants_text(request.headers.get("accept", "")):
        return Response(_text(shown, lost if after is None else 0), 200, _HEADERS, _TEXT)
    items = [msgspec.Raw(b'{"id":"%s",%s' % (one.id.encode(), one.data[1:])) for one in shown]
    page = _Page(items, lost > 0, lost, shown[-1].id if len(found) > limit else None)
    return Response(encode(page), 200, _HEADERS, "application/json")


def _wants_text(accept: str) -> bool:
    kinds = [kind.partition(";")[0].strip().lower() for kind in accept.split(",")]
    return "text/plain" in kinds and "application/json" not in kinds


def _text(shown: list[Event], lost: int) -> str:
    """As it was printed; what is missing is said in a line of its own. `lost`: in all."""
    said = [_said(one.data) for one in shown]
    earlier = max(0, lost - sum(each.dropped_bytes for each in said))
    parts = [_gap(earlier)] if earlier else []
    for each in said:
        if each.dropped_bytes:
            parts.append(("" if not parts or parts[-1].endswith("\n") else "\n") + _gap(each.dropped_bytes))
        parts.append(each.text)
    return "".join(parts)


def _gap(lost: int) -> str:
    return f"[taskgate: {lost} bytes of output were dropped here]\n"

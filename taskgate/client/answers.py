"""What an answer means: the task, page or bytes in it, or the error that it is."""

import json
from typing import Any, cast

from taskgate.client.errors import Unreachable, refusal
from taskgate.client.models import LogPage, Purged, Redriven, Task, TaskPage
from taskgate.client.steps import Answer

Rows = list[dict[str, Any]]


def check(answer: Answer) -> None:
    """Raises Refused, or Unreachable when no Taskgate answers so."""
    if 200 <= answer.status < 300:
        return
    if answer.status >= 400:
        raise refusal(answer.status, json_object(answer.body) or {}, retry_after=answer.headers.get("retry-after"))
    raise Unreachable(f"{answer.url} answers {answer.status}: not Taskgate")


def body_of(answer: Answer) -> dict[str, Any]:
    check(answer)
    body = json_object(answer.body)
    if not body:
        raise Unreachable(f"{answer.url} does not answer as Taskgate")
    return body


def task_of(answer: Answer) -> Task:
    return cast("Task", body_of(answer))


def items_of(answer: Answer) -> Rows:
    return list(body_of(answer).get("items", []))


def tasks_of(answer: Answer) -> TaskPage:
    body = body_of(answer)
    return TaskPage([cast("Task", one) for one in body.get("items", [])], body.get("next_cursor"))


def redriven_of(answer: Answer) -> Redriven:
    body = body_of(answer)
    return Redriven(
        redriven=int(body.get("redriven") or 0),
        refused=int(body.get("refused") or 0),
        skipped=int(body.get("skipped") or 0),
        limit=body.get("limit"),
        retry_after_s=body.get("retry_after_s"),
        remaining=int(body.get("remaining") or 0),
        next_cursor=body.get("next_cursor"),
        refused_ids=tuple(body.get("refused_ids") or ()),
        next_start_at=body.get("next_start_at"),
    )


def purged_of(answer: Answer) -> Purged:
    body = body_of(answer)
    return Purged(int(body.get("deleted") or 0), int(body.get("remaining") or 0), body.get("next_cursor"))


def logs_of(answer: Answer) -> LogPage:
    body = body_of(answer)
    return LogPage(
        list(body.get("items", [])),
        body.get("next"),
        bool(body.get("truncated")),
        int(body.get("dropped_bytes") or 0),
    )


def json_object(raw: bytes | str) -> dict[str, Any] | None:
    """None for what is none, as some proxy's page."""
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None

"""The OpenAPI document: FastAPI's own routes, and beside them the two hot endpoints and what all have in common."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app import logs
from app.api_keys import KeyBody, KeysView, NewKeyView, RotateBody, StreamTokenView
from app.dead_letters import RedriveBody
from app.envelope import Envelope
from app.fields import PARTS
from app.letter import LetterView
from app.queues import QueuesView
from app.scopes import ROUTES
from app.stack import StackView
from app.sweeps import Purged, Redriven
from app.view import TaskView, encode
from app.waiting import MAX_WAIT_S

_DESCRIPTION = """Submit a job, get 202 at once, watch it live.

A 202 leaves when the task is on disk. Errors are problem documents (RFC 9457); `type` tells what they mean.
Times are RFC 3339 in UTC, durations carry their unit in the name, `status` is an open enum."""

_TEXT = {"type": "string"}
_LIMITS = {
    "RateLimit-Policy": {
        "schema": _TEXT,
        "example": '"queue-tasks";q=100000;qu="concurrent-requests", "rate";q=100;w=2',
    },
    "RateLimit": {"schema": _TEXT, "example": '"queue-tasks";r=99999, "rate";r=42;t=1'},
}
"""Limits in force for a submission (draft-ietf-httpapi-ratelimit-headers-10); also with a 429."""

_EARLIER = {
    "Idempotent-Replayed": {"schema": _TEXT, "description": "`true`: the task that this Idempotency-Key led to before"},
    "Unique-Existing": {"schema": _TEXT, "description": "`true`: another task, which has the `unique_key`"},
}
_KEYS = {
    "unique_key": "no other task of yours with it is live: while one has not ended, that is the answer",
    "on_conflict": "instead: `replace` that one if it still waits, or `refuse` (409)",
    "concurrency_key": "as many tasks of yours of the type with it run at a time as the type allows",
}

_READY = {
    "content": {
        "application/json": {"schema": {"type": "object", "required": ["status", "checks"]}},
        "text/plain": {"schema": {"type": "string"}},
    }
}
_PART = {"$ref": "#/components/schemas/TaskPart"}
_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string", "description": "an open enum, as the operation's description tells"},
        "id": {"type": "string", "description": "where to resume after it; none: it lies outside of resuming"},
        "retry": {"type": "integer", "description": "milliseconds after which to come back"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"type": "object", "properties": {"seq": {"type": "integer"}}},
        },
    },
}

_BY_TOKEN = ("/tasks/{task_id}/events", "/events")
_SCHEMES = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "TASKGATE_API_KEY, or a key of `POST /keys`; only where TASKGATE_API_KEY is set",
    },
    "stream_token": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "of `POST /tasks/{task_id}/stream-tokens`; for many tasks one for each, in their order",
    },
}
_CHALLENGE = {"WWW-Authenticate": {"schema": _TEXT, "example": 'Bearer realm="taskgate", error="invalid_token"'}}
_CHALLENGED = {
    status: {"headers": {name: {**header, "description": why} for name, header in _CHALLENGE.items()}}
    for status, why in {"401": "no key, or none that is good", "403": "the scope that the key lacks"}.items()
}

_ID = {"name": "task_id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}


def document(api: FastAPI) -> bytes:
    found = get_openapi(title="Taskgate", version="1", description=_DESCRIPTION, routes=api.routes)
    (task, envelope, problem, stack, queues, letter, redrive, redriven, purged), components = _schemas(
        TaskView, Envelope, Problem, StackView, QueuesView, LetterView, RedriveBody, Redriven, Purged
    )
    (key_body, rotate_body, all_keys, new_key, token), more = _schemas(
        KeyBody, RotateBody, KeysView, NewKeyView, StreamTokenView
    )
    components |= more
    components["Envelope"]["properties"]["payload"] = {"description": "JSON that fits the schema of the type"}
    components["Envelope"]["properties"]["metadata"] = {"type": "object", "description": "kept and shown, never read"}
    for name, meaning in _KEYS.items():
        components["Envelope"]["properties"][name]["description"] = meaning
    for name in ("error", "effort", "metadata"):
        for view in ("TaskView", "LetterView"):
            components[view]["properties"][name] = {"type": ["object", "null"]}
    components["AttemptView"]["properties"]["error"] = {"type": ["object", "null"]}
    components["TaskPart"] = _part(components["TaskView"])
    components["RedriveBody"]["oneOf"] = [{"required": ["ids"]}, {"required": ["filter"]}]
    found["components"] = {
        "schemas": components,
        "securitySchemes": _SCHEMES,
    }
    for path, operations in _hot(task, envelope).items():
        found["paths"][path] = operations | found["paths"].get(path, {})
    for path in ("/tasks", "/dead-letters"):
        found["paths"][path]["get"]["responses"] = {"200": _shown("A page", _page(task))}
    found["paths"]["/dead-letters"]["delete"]["responses"] = {"200": _shown("So many were deleted", purged)}
    found["paths"]["/dead-letters/redrive"]["post"]["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": redrive}},
    }
    for path, body in {"/keys": key_body, "/keys/{key_id}/rotate": rotate_body}.items():
        found["paths"][path]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
        found["paths"][path]["post"]["responses"] = {"201": _shown("The new key", new_key)}
    found["paths"]["/keys"]["get"]["responses"] = {"200": _shown("Keys", all_keys)}
    refused = {"description": "A problem", "content": {"application/problem+json": {"schema": problem}}}
    answers = _answers(task, stack, queues) | {
        "/dead-letters/{task_id}": {"200": _shown("The task and its attempts", letter)},
        "/dead-letters/redrive": {"200": _shown("So many were redriven", redriven)},
        "/tasks/{task_id}/stream-tokens": {"201": _shown("The token", token)},
    }
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            operation["responses"].pop("422", None)  # FastAPI's own shape, which is not sent
            operation["responses"] = {**answers.get(path, operation["responses"]), "default": refused}
            scope = ROUTES[f"{method.upper()} {path}"]
            operation["security"] = [] if scope is None else [{}, {"key": [scope]}]
            if scope is not None:
                operation["responses"] |= {"401": _CHALLENGED["401"] | refused, "403": _CHALLENGED["403"] | refused}
            if path in _BY_TOKEN:
                operation["security"].append({"stream_token": []})
    return encode(found)


def _schemas(*types: type) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    return msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")


class Problem(msgspec.Struct, omit_defaults=True):
    """Why a request was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[dict[str, str]] = []
    """pointer, detail and code of each fault in the body"""
    limit: str = ""
    """what ran out (429): queue-tasks, queue-bytes, queue-wait, tenant-tasks, tenant-bytes, tenant-wait, rate, rate-key
    (that of the API key, of which the RateLimit headers of a 202 do not tell) or streams"""


def _shown(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _answers(task: dict[str, Any], stack: dict[str, Any], queues: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What routes answer that is not just JSON of any form, by path."""
    stream = {"description": "Events", "content": {"text/event-stream": {"itemSchema": _EVENT}}}
    return {
        "/tasks/{task_id}/result": {
            "200": {"description": "The result", "content": {"application/json": {}}},
            "204": {"description": "It ended without one; X-Task-Status says how"},
            "304": {"description": "It is the one that you have"},
        },
        "/tasks/{task_id}/logs": {"200": logs.ANSWER},
        "/tasks/{task_id}/stack": {"200": _shown("Where it is", stack)},
        "/tasks/{task_id}/events": {"200": stream, "204": {"description": "The end was seen: do not come back"}},
        "/events": {"200": stream, "204": {"description": "All ends were seen: do not come back"}},
        "/tasks/{task_id}/cancel": {"200": _shown("It is cancelled", task), "202": _shown("It will be", task)},
        "/tasks/{task_id}/redrive": {"202": _shown("It waits again", task)},
        "/queues": {"200": _shown("Queues", queues)},
        "/readyz": {
            "200": _READY | {"description": "All is well"},
            "503": _READY | {"description": "Something is not"},
        },
        "/problems/{slug}": {"200": {"description": "Its meaning", "content": {"text/plain": {}}}},
    }


def _page(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["items", "next_cursor"],
        "properties": {"items": {"type": "array", "items": task}, "next_cursor": {"type": ["string", "null"]}},
    }


def _part(view: dict[str, Any]) -> dict[str, Any]:
    """The schema of what `fields` picks from a task."""
    inner = {name: {"type": ["object", "null"]} for name in PARTS}
    result = {"result": {"description": "what the handler returned; null: nothing, or not yet"}}
    return view | {"title": "TaskPart", "required": ["id"], "properties": view["properties"] | inner | result}


def _hot(task: dict[str, Any], envelope: dict[str, Any]) -> dict[str, Any]:
    shown = _shown("The task", task)
    key = {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 255}}
    fields = {"name": "fields", "in": "query", "schema": {"type": "string"}, "example": "status,progress(percent)"}
    match = {"name": "If-None-Match", "in": "header", "schema": {"type": "string"}}
    prefer = {"name": "Prefer", "in": "header", "schema": {"type": "string"}, "example": "wait=10"}
    wait = {
        "name": "wait",
        "in": "query",
        "schema": {"type": "number", "minimum": 0},
        "description": f"seconds; more than {MAX_WAIT_S} counts as that",
    }
    return {
        "/tasks": {
            "post": {
                "tags": ["tasks"],
                "summary": "Submit a task",
                "description": "Answers when the task is on disk. The same `Idempotency-Key` and body within 24 hours "
                "is the same task (`Idempotent-Replayed: true`). 429: `limit` says what ran out, `Retry-After` when to "
                "come again; a queue may also hold the answer until there is room, or keep what it has no room for as "
                "a dead letter (202, `failed`, kind `overflow`). `RateLimit-Policy` and `RateLimit` tell all limits "
                "and what is left. While another task with the same `unique_key` has not ended, the answer is that "
                "one (`Unique-Existing: true`), "
                "unless `on_conflict` says `replace` (it is canceled if it still waits) or `refuse` (409). "
                f"`Prefer: wait=N` holds the answer for up to N (at most {MAX_WAIT_S}) seconds: 200 if the task ends "
                "in time. The body may be sent with `Content-Encoding: gzip`.",
                "operationId": "submit",
                "parameters": [key, prefer],
                "requestBody": {"required": True, "content": {"application/json": {"schema": envelope}}},
                "responses": {
                    "202": shown | {"headers": _LIMITS | _EARLIER},
                    "200": _shown("The task, which ended in time", task) | {"headers": _LIMITS | _EARLIER},
                },
            }
        },
        "/tasks/{task_id}": {
            "get": {
                "tags": ["tasks"],
                "summary": "The task now",
                "description": "At most half a second old; `Cache-Control: no-cache` asks for this very moment. "
                "`Retry-After` and `poll_after_ms` say when to come again. `wait`, or `Prefer: wait=N`, holds the "
                "answer for up to that many seconds: until the task has ended or, with `If-None-Match`, has changed. "
                "Where both are given, `wait` counts. Ages, positions and estimates alone are no change.",
                "operationId": "read",
                "parameters": [_ID, fields, wait, match, prefer],
                "responses": {
                    "200": _shown("The task, or of it what `fields` names", {"anyOf": [task, _PART]}),
                    "304": {"description": "Nothing has changed"},
                },
            }
        },
    }

"""Which scope each route needs: one table, so that a route without a line answers nobody."""

from fastapi import Request

from app.errors import Problem
from app.reply import CALLER
from taskgate.contract.scopes import Scope

ROUTES: dict[str, Scope | None] = {
    "POST /tasks": "tasks:write",
    "GET /tasks": "tasks:read",
    "GET /tasks/{task_id}": "tasks:read",
    "DELETE /tasks/{task_id}": "tasks:write",
    "GET /tasks/{task_id}/result": "tasks:read",
    "GET /tasks/{task_id}/events": "tasks:read",
    "POST /tasks/{task_id}/stream-tokens": "tasks:read",
    "GET /tasks/{task_id}/logs": "tasks:read",
    "GET /tasks/{task_id}/stack": "tasks:read",
    "POST /tasks/{task_id}/cancel": "tasks:cancel",
    "POST /tasks/{task_id}/redrive": "tasks:write",
    "GET /events": "tasks:read",
    "GET /dead-letters": "tasks:read",
    "GET /dead-letters/{task_id}": "tasks:read",
    "POST /dead-letters/redrive": "tasks:write",
    "DELETE /dead-letters": "tasks:write",
    "GET /task-types": "tasks:read",
    "GET /workers": "tasks:read",
    "GET /queues": "tasks:read",
    "GET /keys": "keys:admin",
    "POST /keys": "keys:admin",
    "POST /keys/{key_id}/rotate": "keys:admin",
    "DELETE /keys/{key_id}": "keys:admin",
    "GET /metrics": "metrics:read",
    "GET /livez": None,
    "GET /healthz": None,
    "GET /readyz": None,
    "GET /problems/{slug}": None,
    "GET /docs": None,
    "GET /docs/{name}": None,
    "GET /openapi.json": None,
}
"""By method and template; None: anybody, without a key."""

_PATHS = frozenset(route.partition(" ")[2] for route, scope in ROUTES.items() if scope is None and "{" not in route)
_FOLDERS = ("/problems/", "/docs/")


def is_public(path: str) -> bool:
    return path in _PATHS or path.startswith(_FOLDERS)


def check_scope(scopes: frozenset[str], needed: str) -> None:
    """Raises Problem: 403."""
    if needed not in scopes:
        challenge = f'Bearer realm="taskgate", error="insufficient_scope", scope="{needed}"'
        raise Problem("forbidden", f"The key lacks the scope {needed}.", headers={"WWW-Authenticate": challenge})


async def check_route(request: Request) -> None:
    """A dependency of every route; a KeyError, and so a 500, where the table has none for it."""
    needed = ROUTES[f"{request.method} {request.scope['route'].path_format}"]
    if needed is not None:
        check_scope(request.scope[CALLER].grant.scopes, needed)

"""The FastAPI application behind the door: routes, its own refusals as problems, lifespan."""

import contextlib
import functools
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from app import api_keys, dead_letters, documentation, logs, openapi
from app.errors import Problem, problem_of, problem_of_status
from app.gateway import Gateway
from app.reply import CALLER
from app.routes import router
from app.scopes import check_route
from taskgate.contract.errors import TaskgateError

_NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""The door has its own, of all routes; FastAPI's would tell queries, where stream tokens stand."""

_ROUTERS = (router, logs.router, dead_letters.router, api_keys.router)


def build(gateway: Gateway) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    api = FastAPI(
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
        dependencies=[Depends(check_route)],
    )
    api.state.gateway = gateway
    for one in _ROUTERS:
        api.include_router(one)
    api.include_router(documentation.router(functools.cache(lambda: openapi.document(api))))
    for error in (Problem, TaskgateError, HTTPException, RequestValidationError, Exception):
        api.add_exception_handler(error, _refuse)
    return api


async def _refuse(request: Request, error: Exception) -> Response:
    problem = _problem(error)
    if problem.status == HTTPStatus.METHOD_NOT_ALLOWED:
        problem.headers["Allow"] = _allowed(request) or problem.headers.get("Allow", "GET")
    request_id = request.scope[CALLER].request_id
    request.app.state.gateway.refusals.note(problem, request_id, request.scope)
    response = Response(problem.body(request_id), problem.status)
    response.raw_headers += problem.raw_headers()
    return response


def _allowed(request: Request) -> str:
    """By all routes of that very path, or else of its pattern; Starlette names the methods of the first alone."""
    routes: list[Route] = [each for one in _ROUTERS for each in one.routes if isinstance(each, Route)]
    found = [each for each in routes if each.matches(request.scope)[0] is not Match.NONE]
    exact = [each for each in found if each.path == request.scope["path"]]
    return ", ".join(sorted({method for each in exact or found for method in each.methods or ()}))


def _problem(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case TaskgateError():
            return problem_of(error)
        case HTTPException():
            return problem_of_status(error.status_code, error.headers)
        case RequestValidationError():
            # The first fault is enough, and its input is not repeated.
            first: dict[str, Any] = error.errors()[0]
            return Problem("bad-request", f"`{first['loc'][-1]}`: {first['msg']}")
    return Problem("internal-error")

"""The FastAPI application behind the door: routes, its own refusals as problems, lifespan."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app import dead_letters, documentation, logs, openapi
from app.errors import Problem, problem_of, problem_of_status
from app.gateway import Gateway
from app.reply import CALLER
from app.routes import router
from taskgate.contract.errors import TaskgateError


def build(gateway: Gateway) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    api = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    api.state.gateway = gateway
    api.include_router(router)
    api.include_router(logs.router)
    api.include_router(dead_letters.router)
    api.include_router(documentation.router(openapi.document(api)))
    for error in (Problem, TaskgateError, HTTPException, RequestValidationError, Exception):
        api.add_exception_handler(error, _refuse)
    return api


async def _refuse(request: Request, error: Exception) -> Response:
    problem = _problem(error)
    request.app.state.gateway.refusals.note(problem)
    response = Response(problem.body(request.scope[CALLER].request_id), problem.status)
    response.raw_headers += problem.raw_headers()
    return response


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

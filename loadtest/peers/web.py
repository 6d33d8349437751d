"""The same idiomatic FastAPI front for every peer: one route to submit, one to ask."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel


class Job(BaseModel):
    type: str
    payload: dict[str, Any]


def front(
    submit: Callable[[dict[str, Any]], Awaitable[str]],
    status: Callable[[str], Awaitable[dict[str, Any]]],
    lifespan: Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """For asyncio queues: routes that await."""
    app = _application(lifespan)

    @app.post("/tasks", status_code=202)
    async def post(job: Job) -> dict[str, str]:
        return {"id": await submit(job.payload)}

    @app.get("/tasks/{task_id}")
    async def get(task_id: str) -> dict[str, Any]:
        return await status(task_id)

    return app


def threaded_front(submit: Callable[[dict[str, Any]], str], status: Callable[[str], dict[str, Any]]) -> FastAPI:
    """For blocking clients: plain functions, which FastAPI runs in its thread pool."""
    app = _application(None)

    @app.post("/tasks", status_code=202)
    def post(job: Job) -> dict[str, str]:
        return {"id": submit(job.payload)}

    @app.get("/tasks/{task_id}")
    def get(task_id: str) -> dict[str, Any]:
        return status(task_id)

    return app


def _application(lifespan: Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]] | None) -> FastAPI:
    app = FastAPI(lifespan=lifespan)

    @app.get("/readyz")
    async def ready() -> dict[str, bool]:
        return {"ok": True}

    return app

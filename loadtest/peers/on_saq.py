"""SAQ on Redis, 50 jobs at a time in each process (its default is 10)."""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from saq import Queue

from loadtest import marks
from loadtest.peers import web

queue = Queue.from_url(os.environ["BENCH_REDIS_URL"])


async def run(_: dict[str, Any], *, payload: dict[str, Any]) -> dict[str, Any]:
    marks.leave(payload["n"])
    return {"n": payload["n"]}


settings = {"queue": queue, "functions": [run], "concurrency": 50}


async def _submit(payload: dict[str, Any]) -> str:
    return str((await queue.enqueue("run", payload=payload)).key)


async def _status(task_id: str) -> dict[str, Any]:
    job = await queue.job(task_id)
    return {"id": task_id, "status": job.status, "result": job.result}


@contextlib.asynccontextmanager
async def _connected(_: FastAPI) -> AsyncIterator[None]:
    await queue.connect()
    yield
    await queue.disconnect()


app = web.front(_submit, _status, _connected)

"""arq on Redis, with what makes it fast: 100 jobs at a time (its default is 10), a look each 10 ms (0.5 s)."""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from arq import ArqRedis, create_pool
from arq.connections import RedisSettings
from arq.jobs import Job
from fastapi import FastAPI

from loadtest import marks
from loadtest.peers import web

uvloop.install()  # its command line has no option for that

_settings = RedisSettings.from_dsn(os.environ["BENCH_REDIS_URL"])
_settings.max_connections = 200
_pools: list[ArqRedis] = []

LOG = {"version": 1, "disable_existing_loggers": False, "loggers": {"arq": {"level": "WARNING"}}}


async def run(_: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    marks.leave(payload["n"])
    return {"n": payload["n"]}


class WorkerSettings:
    functions = (run,)
    redis_settings = _settings
    log_results = False
    max_jobs = 100
    poll_delay = 0.01
    queue_read_limit = 500


async def _submit(payload: dict[str, Any]) -> str:
    job = await _pools[0].enqueue_job("run", payload)
    assert job is not None
    return str(job.job_id)


async def _status(task_id: str) -> dict[str, Any]:
    job = Job(task_id, _pools[0])
    status = await job.status()
    info = await job.result_info() if status == "complete" else None
    return {"id": task_id, "status": status, "result": info and info.result}


@contextlib.asynccontextmanager
async def _connected(_: FastAPI) -> AsyncIterator[None]:
    pool = await create_pool(_settings)
    _pools.append(pool)
    yield
    await pool.aclose()


app = web.front(_submit, _status, _connected)

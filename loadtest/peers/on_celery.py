"""Celery on Redis, JSON, forked processes; each takes 128 jobs ahead, as its documentation advises for short ones."""

import os
from typing import Any

from celery import Celery

from loadtest import marks
from loadtest.peers import web

_URL = os.environ["BENCH_REDIS_URL"]
queue = Celery("peer", broker=_URL, backend=_URL)
queue.conf.update(
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=128,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


def _run(payload: dict[str, Any]) -> dict[str, Any]:
    marks.leave(payload["n"])
    return {"n": payload["n"]}


run = queue.task(_run, name="run")


def _submit(payload: dict[str, Any]) -> str:
    return str(run.delay(payload).id)


def _status(task_id: str) -> dict[str, Any]:
    result = queue.AsyncResult(task_id)
    status, value = result.state, result.result
    return {"id": task_id, "status": status, "result": value if status == "SUCCESS" else None}


app = web.threaded_front(_submit, _status)

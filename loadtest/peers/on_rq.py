"""RQ on Redis, with the worker that does not fork for each job, which is the fastest it has."""

import os
from typing import Any

from redis import Redis
from rq import Queue
from rq.job import Job

from loadtest import marks
from loadtest.peers import web

_redis = Redis.from_url(os.environ["BENCH_REDIS_URL"])
_queue = Queue(connection=_redis)


def run(payload: dict[str, Any]) -> dict[str, Any]:
    marks.leave(payload["n"])
    return {"n": payload["n"]}


def _submit(payload: dict[str, Any]) -> str:
    return str(_queue.enqueue("loadtest.peers.on_rq.run", payload).id)


def _status(task_id: str) -> dict[str, Any]:
    job = Job.fetch(task_id, connection=_redis)
    return {"id": task_id, "status": str(job.get_status(refresh=False)), "result": job.return_value()}


app = web.threaded_front(_submit, _status)

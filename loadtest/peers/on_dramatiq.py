"""Dramatiq on its Redis broker, results kept by its Redis backend."""

import os
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import ResultMissing, Results
from dramatiq.results.backends import RedisBackend

from loadtest import marks
from loadtest.peers import web

_URL = os.environ["BENCH_REDIS_URL"]
_backend = RedisBackend(url=_URL)
_broker = RedisBroker(url=_URL)
_broker.add_middleware(Results(backend=_backend))
dramatiq.set_broker(_broker)


def _run(payload: dict[str, Any]) -> dict[str, Any]:
    marks.leave(payload["n"])
    return {"n": payload["n"]}


run = dramatiq.actor(_run, actor_name="run", store_results=True)


def _submit(payload: dict[str, Any]) -> str:
    return str(run.send(payload).message_id)


def _status(task_id: str) -> dict[str, Any]:
    """Dramatiq keeps no status, only a result once there is one."""
    try:
        result = _backend.get_result(run.message().copy(message_id=task_id))
    except ResultMissing:
        return {"id": task_id, "status": "unknown", "result": None}
    return {"id": task_id, "status": "done", "result": result}


app = web.threaded_front(_submit, _status)

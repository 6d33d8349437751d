"""FastAPI's BackgroundTasks: no queue, nothing kept, results in a dict of the process."""

import uuid
from typing import Any

from fastapi import BackgroundTasks, FastAPI, HTTPException

from loadtest import marks
from loadtest.peers.web import Job

app = FastAPI()
_results: dict[str, dict[str, Any]] = {}


async def _run(task_id: str, job: Job) -> None:
    marks.leave(job.payload["n"])
    _results[task_id] = {"status": "done", "result": {"n": job.payload["n"]}}


@app.get("/readyz")
async def ready() -> dict[str, bool]:
    return {"ok": True}


@app.post("/tasks", status_code=202)
async def post(job: Job, tasks: BackgroundTasks) -> dict[str, str]:
    task_id = uuid.uuid4().hex
    tasks.add_task(_run, task_id, job)
    return {"id": task_id}


@app.get("/tasks/{task_id}")
async def get(task_id: str) -> dict[str, Any]:
    if task_id not in _results:
        raise HTTPException(404)
    return {"id": task_id, **_results[task_id]}

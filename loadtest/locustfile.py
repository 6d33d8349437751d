"""Simulated users: they submit, poll as often as they are told to, or follow the stream. `python -m loadtest.run`.

The process exits 0 only if the users' own ledger holds.
"""
# mypy: allow-subclassing-any, allow-untyped-decorators, allow-untyped-calls

import json
import os
import random
from typing import Any

import gevent
from locust import HttpUser, events, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest.ledger import Ledger

LEDGER = Ledger(limit=int(os.environ.get("LOADTEST_TASKS", "1000")))
_WITHIN_S = 60
"""No task of these users may take longer, waiting included."""


class TaskUser(HttpUser):
    """Submits, then watches what was accepted to its end."""

    abstract = True

    def wait_time(self) -> float:
        return random.uniform(0, 0.2)

    def submit(self) -> str | None:
        """The id of an accepted task; None after a refusal, which is waited out."""
        if not LEDGER.may_submit():
            raise StopUser
        payload = {"steps": random.randint(1, 5), "pause_s": 0.02, "fails": random.random() < 0.05}
        body = {"type": "steps", "payload": payload, "max_attempts": 1}
        with self.client.post("/tasks", json=body, name="submit", catch_response=True) as answer:
            wait_s = LEDGER.answered("submit", answer.status_code, answer.headers.get("Retry-After"))
            if answer.status_code == 202:
                task_id = str(answer.json()["id"])
                LEDGER.accepted(task_id)
                return task_id
            if wait_s is not None:
                answer.success()
        gevent.sleep(wait_s or 1)
        return None

    def read(self, task_id: str) -> dict[str, Any] | None:
        """The task as it is now; None when that could not be learnt."""
        with self.client.get(f"/tasks/{task_id}", name="status") as answer:
            LEDGER.answered("status", answer.status_code, answer.headers.get("Retry-After"))
            return answer.json() if answer.status_code == 200 else None


class PollingUser(TaskUser):
    weight = 2

    @task
    def submit_and_poll(self) -> None:
        task_id = self.submit()
        if task_id:
            poll(self, task_id)


class StreamingUser(TaskUser):
    weight = 1

    @task
    def submit_and_follow(self) -> None:
        task_id = self.submit()
        if task_id is None:
            return
        with self.client.get(f"/tasks/{task_id}/events", name="events", stream=True, timeout=_WITHIN_S) as answer:
            LEDGER.answered("events", answer.status_code, answer.headers.get("Retry-After"))
            for name, data in _stream(answer.iter_lines(chunk_size=1, decode_unicode=True)):
                if name == "end":
                    LEDGER.saw(task_id, json.loads(data)["status"])
                    return
        LEDGER.broken["a stream stopped before its end event"] += 1


def poll(user: TaskUser, task_id: str) -> None:
    """Read until final, as often as the answers say."""
    with gevent.Timeout(_WITHIN_S, False):
        while True:
            seen = user.read(task_id)
            if seen and LEDGER.saw(task_id, seen["status"]):
                return
            gevent.sleep((seen["poll_after_ms"] if seen else 1000) / 1000)


def _stream(lines: Any) -> Any:
    """(event name, data) of a text/event-stream."""
    name, data = "message", ""
    for line in lines:
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line:
            if data:
                yield name, data
            name, data = "message", ""


@events.test_stop.add_listener
def _settle(environment: Environment, **_: Any) -> None:
    """After the last user: what nobody saw end must end now."""
    reader = PollingUser(environment)
    for task_id in LEDGER.open():
        poll(reader, task_id)
    broken = LEDGER.close()
    print(f"ledger: {LEDGER.summary()}")
    for line in broken:
        print(f"ledger: broken: {line}")
    environment.process_exit_code = 1 if broken else 0

"""Simulated users: they submit, poll as often as they are told to, or follow the stream. `python -m loadtest.run`.

The process exits 0 only if the users' own ledger holds.
"""
# mypy: allow-subclassing-any, allow-untyped-decorators, allow-untyped-calls

import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

import gevent
from locust import HttpUser, events, task
from locust.clients import HttpSession
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import STATE_RUNNING, STATE_SPAWNING

from loadtest import sse
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
        self._wait(wait_s or 1)
        return None

    def _wait(self, seconds: float) -> None:
        """Sleep, but not past the end of the test."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.environment.runner.state in (STATE_SPAWNING, STATE_RUNNING):
            gevent.sleep(0.2)

    def read(self, task_id: str) -> dict[str, Any] | None:
        """The task as it is now; None when that could not be learnt."""
        with self.client.get(f"/tasks/{task_id}", name="status", catch_response=True) as answer:
            LEDGER.answered("status", answer.status_code, answer.headers.get("Retry-After"))
            return answer.json() if answer.status_code == 200 else None


class PollingUser(TaskUser):
    weight = 2

    @task
    def submit_and_poll(self) -> None:
        task_id = self.submit()
        if task_id:
            poll(self.read, task_id)


class StreamingUser(TaskUser):
    weight = 1

    @task
    def submit_and_follow(self) -> None:
        task_id = self.submit()
        if task_id is None:
            return
        path = f"/tasks/{task_id}/events"
        with self.client.get(path, name="events", stream=True, timeout=_WITHIN_S, catch_response=True) as answer:
            LEDGER.answered("events", answer.status_code, answer.headers.get("Retry-After"))
            for name, data in sse.events(answer.iter_content(None)):
                if name == "end":
                    LEDGER.saw(task_id, json.loads(data)["status"])
                    return
        LEDGER.broken["a stream stopped before its end event"] += 1


def poll(read: Callable[[str], dict[str, Any] | None], task_id: str) -> None:
    """Read until final, as often as the answers say."""
    with gevent.Timeout(_WITHIN_S, False):
        while True:
            seen = read(task_id)
            if seen and LEDGER.saw(task_id, seen["status"]):
                return
            gevent.sleep((seen["poll_after_ms"] if seen else 1000) / 1000)


@events.user_error.add_listener
def _raised(exception: Exception, **_: Any) -> None:
    LEDGER.broken[f"a user raised {type(exception).__name__}: {exception}"] += 1


@events.test_stop.add_listener
def _settle(environment: Environment, **_: Any) -> None:
    """After the last user: what nobody saw end must end now."""
    session = HttpSession(environment.host, environment.events.request, None)
    for task_id in LEDGER.open():
        poll(lambda each: session.get(f"/tasks/{each}", name="settle").json(), task_id)
    broken = LEDGER.close()
    print(f"ledger: {LEDGER.summary()}")
    for line in broken:
        print(f"ledger: broken: {line}")
    environment.process_exit_code = 1 if broken else 0

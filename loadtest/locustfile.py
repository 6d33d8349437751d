"""Simulated users of `python -m loadtest.run`: they submit webhook bodies, poll, follow streams, hurry, cancel.

The process exits 0 only if the users' own ledger holds and their times are within the limits.
"""
# mypy: allow-subclassing-any, allow-untyped-decorators, allow-untyped-calls

import itertools
import json
import os
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gevent
from gevent.pool import Pool
from locust import FastHttpUser, LoadTestShape, constant, events, task
from locust.contrib.fasthttp import FastHttpSession, LocustUserAgent
from locust.env import Environment

from loadtest import bodies, shapes, sse
from loadtest.journal import Journal, Limits
from loadtest.ledger import EXPECTED, Ledger

LEDGER = Ledger()
JOURNAL = Journal()
BODIES = bodies.load(Path(folder) if (folder := os.environ.get(bodies.VARIABLE)) else None)
_KEY = os.environ.get("LOADTEST_API_KEY", "")
_HEADERS = {"Authorization": f"Bearer {_KEY}"} if _KEY else {}
_SUBMIT_HEADERS = {"Content-Type": "application/json"}

_WITHIN_S = 60
"""No task of these users may take longer, waiting included."""
_SETTLED_S = 20
_AGAIN = 1000
"""Ended tasks, of all, that are read once more after the last user."""
_BURST = 10
_FAILS = 0.05
_STEP_S = 0.05
_MOST_A_SECOND = 100
"""Users that come or go; locust warns of more."""

# The users judge every answer themselves.
LocustUserAgent.valid_response_codes = frozenset(range(200, 600))


class Answer(NamedTuple):
    status: int
    body: bytes
    wait_s: float | None
    """Of a refusal."""

    def json(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.body)
        return decoded


def call(
    client: Any,
    what: str,
    method: str,
    path: str,
    *,
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """`what` is the name in the reports, and says which answers are expected."""
    with client.request(method, path, name=what, data=data, headers=headers, catch_response=True) as answer:
        judged = _judged(what, answer)
        return Answer(answer.status_code, answer.content or b"", judged)


def _judged(what: str, answer: Any) -> float | None:
    """Note it, for us and for locust. Seconds to wait if it is a refusal."""
    status = answer.status_code
    JOURNAL.answered(what, status, answer.request_meta["response_time"])
    wait_s = LEDGER.answered(what, status, answer.headers.get("retry-after") if answer.headers else None)
    if status in EXPECTED[what]:
        answer.success()
    else:
        answer.failure(f"{what}: {status or 'no answer'}")
    return wait_s


class TaskUser(FastHttpUser):
    """Submits, then watches what was accepted to its end."""

    abstract = True
    wait_time = constant(0.1)
    default_headers = _HEADERS
    network_timeout = _WITHIN_S
    connection_timeout = _WITHIN_S

    def submit(self, *, steps: int = 0, fails: bool | None = None) -> tuple[str, bodies.Body] | None:
        """A task that was let in, after as many refusals as it took, all of them obeyed; None: it was not."""
        fails = random.random() < _FAILS if fails is None else fails
        body = random.choice(BODIES)
        began = time.monotonic()
        for refusals in itertools.count():
            data = _submission(body, steps=steps or random.randint(1, 5), fails=fails)
            answer = call(self.client, "submit", "POST", "/tasks", data=data, headers=_SUBMIT_HEADERS)
            if answer.status == 202:
                task_id = str(answer.json()["id"])
                LEDGER.accepted(task_id, due=("failed",) if fails else ("succeeded",), refusals=refusals)
                return task_id, body
            if answer.wait_s is None or LEDGER.kept_out(time.monotonic() - began):
                break
            gevent.sleep(answer.wait_s)
        return None

    def check_result(self, task_id: str, body: bodies.Body) -> None:
        answer = call(self.client, "result", "GET", f"/tasks/{task_id}/result")
        if answer.status == 200:
            LEDGER.result(whole=answer.json().get("sha256") == body.digest)


class PollingUser(TaskUser):
    """The plain client: one task, polled as often as the answers say, then its result."""

    weight = 5

    @task
    def submit_and_poll(self) -> None:
        if submitted := self.submit():
            task_id, body = submitted
            if poll(self.client, task_id) == "succeeded":
                self.check_result(task_id, body)


class StreamingUser(TaskUser):
    """Follows the stream, and reads afterwards whether that told the truth."""

    weight = 3

    @task
    def submit_and_follow(self) -> None:
        if submitted := self.submit():
            task_id, _ = submitted
            path = f"/tasks/{task_id}/events"
            asked_ms = time.time() * 1000
            with self.client.get(path, name="events", stream=True, catch_response=True) as answer:
                if _judged("events", answer) is None and answer.status_code == 200:
                    self._follow(task_id, answer, asked_ms)
            poll(self.client, task_id)

    def _follow(self, task_id: str, answer: Any, asked_ms: float) -> None:
        """Ages are those of events since it asked: what was before is history."""
        with gevent.Timeout(_WITHIN_S, False):
            for name, data in sse.events(_blocks(answer)):
                if name == "custom":
                    at_ms = json.loads(data)["data"]["at_ms"]
                    if at_ms >= asked_ms:
                        JOURNAL.event(at_ms)
                elif name == "end":
                    LEDGER.told(task_id, json.loads(data)["status"])
                    return
        LEDGER.broken["a stream stopped before its end event"] += 1


class HastyUser(TaskUser):
    """Submits faster than the service works, as senders of webhooks do, and comes for the ends later."""

    weight = 1

    @task
    def submit_in_a_burst(self) -> None:
        for submitted in [self.submit() for _ in range(_BURST)]:
            if submitted:
                poll(self.client, submitted[0])


class CancelingUser(TaskUser):
    """Loses interest in long tasks: some before they start, some while they run."""

    weight = 1

    @task
    def submit_and_cancel(self) -> None:
        if submitted := self.submit(steps=200, fails=False):
            task_id, _ = submitted
            gevent.sleep(random.choice((0, 1)))
            LEDGER.canceled(task_id, call(self.client, "cancel", "POST", f"/tasks/{task_id}/cancel").status)
            poll(self.client, task_id)


class Shape(LoadTestShape):
    """What LOADTEST_SHAPE says: [[seconds, users], …]."""

    stages = tuple(shapes.Stage(*each) for each in json.loads(os.environ.get("LOADTEST_SHAPE", "[[10, 10]]")))

    def tick(self) -> tuple[int, float] | None:
        users = shapes.users_at(self.stages, self.get_run_time())
        return None if users is None else (users, _MOST_A_SECOND)


def poll(client: Any, task_id: str, *, within_s: float = _WITHIN_S) -> str | None:
    """Read until final, as often as the answers say. The end, or None when it did not come in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        answer = call(client, "status", "GET", f"/tasks/{task_id}")
        seen = answer.json() if answer.status == 200 else None
        if seen and LEDGER.saw(task_id, seen["status"]):
            return str(seen["status"])
        if answer.status == 404:
            return None  # is told by the ledger; it will not come back
        gevent.sleep((seen["poll_after_ms"] if seen else 1000) / 1000)
    return None


def read_again(client: Any, task_id: str) -> None:
    answer = call(client, "again", "GET", f"/tasks/{task_id}")
    if answer.status == 200:
        LEDGER.saw(task_id, answer.json()["status"])


def _submission(body: bodies.Body, *, steps: int, fails: bool) -> bytes:
    head = {"delivery": str(uuid.uuid4()), "event": body.event, "steps": steps, "step_s": _STEP_S, "fails": fails}
    payload = json.dumps(head).encode()[:-1] + b', "body": ' + body.raw + b"}"
    return b'{"type": "webhook", "payload": ' + payload + b"}"


def _blocks(answer: Any) -> Iterator[bytes]:
    """The stream block by block as they arrive; its `read` would wait for more."""
    while block := answer.stream.readline(b"\r\n\r\n"):
        yield block


@events.user_error.add_listener
def _raised(exception: Exception, **_: Any) -> None:
    LEDGER.broken[f"a user raised {type(exception).__name__}: {exception}"] += 1


@events.test_start.add_listener
def _begin(environment: Environment, **_: Any) -> None:
    environment.process_exit_code = 1  # until the ledger has spoken
    runner: Any = environment.runner

    def count() -> None:
        while True:
            JOURNAL.users(runner.user_count)
            gevent.sleep(1)

    gevent.spawn(count)


@events.test_stop.add_listener
def _settle(environment: Environment, **_: Any) -> None:
    """After the last user: what nobody saw end must end now, and what has ended must still be so."""
    session = FastHttpSession(environment.host, environment.events.request, None, headers=_HEADERS)
    pool = Pool(10)
    pool.map(lambda task_id: poll(session, task_id, within_s=_SETTLED_S), LEDGER.open())
    ended = [task_id for task_id, task in LEDGER.tasks.items() if task.end is not None]
    pool.map(lambda task_id: read_again(session, task_id), random.sample(ended, min(_AGAIN, len(ended))))
    limits = Limits(
        accepted_ms=float(os.environ.get("LOADTEST_P99_MS", "0")),
        age_ms=float(os.environ.get("LOADTEST_AGE_MS", "0")),
    )
    broken = LEDGER.close() + JOURNAL.over(limits)
    if path := os.environ.get("LOADTEST_JOURNAL"):
        report = {"summary": LEDGER.summary(), "broken": broken, "totals": JOURNAL.totals(), "rows": JOURNAL.rows()}
        Path(path).write_text(json.dumps(report))
    print(f"ledger: {LEDGER.summary()}")
    for line in broken:
        print(f"ledger: broken: {line}")
    environment.process_exit_code = 1 if broken else 0

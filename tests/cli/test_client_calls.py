"""What each call sends, what it makes of the answer, and which error each refusal is."""

import json
from typing import Any

import pytest

from taskgate import client as sdk
from taskgate.client import Client, LogLine, LogPage, Refused, Task, TaskPage
from tests.cli.conftest import TASK_ID, Receiver, answer, problem
from tests.cli.drivers import CLIENTS

TASK: Task = {"id": TASK_ID, "type": "t", "status": "queued"}


@pytest.fixture(params=CLIENTS)
def client(receiver: Receiver, request: pytest.FixtureRequest) -> Any:
    return CLIENTS[request.param](receiver.url, patience_s=0)


ERRORS = [
    (400, "bad-request", sdk.Invalid),
    (400, "invalid-cursor", sdk.Invalid),
    (401, "unauthorized", sdk.Unauthorized),
    (403, "forbidden", sdk.Unauthorized),
    (404, "not-found", sdk.NotFound),
    (408, "body-timeout", sdk.Unavailable),
    (409, "not-cancelable", sdk.NotCancelable),
    (409, "not-dead", sdk.NotDead),
    (409, "not-finished", sdk.NotFinished),
    (409, "not-running", sdk.NotRunning),
    (409, "unique-conflict", sdk.UniqueConflict),
    (409, "something-new", Refused),
    (410, "gone", sdk.Gone),
    (413, "body-too-large", sdk.Invalid),
    (415, "unsupported-media-type", sdk.Invalid),
    (422, "idempotency-key-reused", sdk.KeyReused),
    (422, "validation-error", sdk.Invalid),
    (429, "queue-full", sdk.QueueFull),
    (429, "rate-limited", sdk.TooMany),
    (429, "too-many-streams", sdk.TooMany),
    (500, "internal-error", Refused),
    (503, "service-draining", sdk.Unavailable),
]


@pytest.mark.parametrize(("status", "slug", "kind"), ERRORS)
def test_each_meaning_has_a_class(receiver: Receiver, status: int, slug: str, kind: type[Refused]) -> None:
    receiver.answers.append(problem(status, slug, "why"))
    with Client(receiver.url) as client, pytest.raises(Refused, match="why") as caught:
        client.get(TASK_ID)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.slug) == (status, slug)


def test_the_result_is_the_value_that_was_returned(client: Any, receiver: Receiver) -> None:
    receiver.answers += [answer(200, b'{"n": 1.50}'), answer(200, b'{"n": 1.50}'), answer(204)]
    with client:
        assert client.result(TASK_ID) == {"n": 1.5}
        assert client.result_json(TASK_ID) == b'{"n": 1.50}'
        assert client.result(TASK_ID) is None


def test_a_page_of_tasks(client: Any, receiver: Receiver) -> None:
    receiver.answers += [answer(200, {"items": [TASK], "next_cursor": "c"}), answer(200, {"items": []})]
    with client:
        assert client.list(status="failed", metadata={"a b": "1&2"}, limit=7) == TaskPage([TASK], "c")
        assert client.list(cursor="c") == TaskPage([], None)
    first, second = receiver.requests
    assert first.path == "/tasks?status=failed&limit=7&metadata.a+b=1%262"
    assert second.path == "/tasks?limit=50&cursor=c"


def test_a_page_of_output(client: Any, receiver: Receiver) -> None:
    line: LogLine = {"id": "1-0", "attempt": 1, "stream": "stdout", "at": "2026-01-01T00:00:00Z", "text": "hello"}
    body = {"items": [line], "truncated": True, "dropped_bytes": 9, "next": "1-0"}
    receiver.answers.append(answer(200, body))
    with client:
        assert client.logs(TASK_ID, after="0-1", limit=5) == LogPage([line], "1-0", True, 9)
    assert receiver.requests[0].path == f"/tasks/{TASK_ID}/logs?after=0-1&limit=5"


@pytest.mark.parametrize(
    ("call", "sent"),
    [
        ("get", ("GET", "")),
        ("result", ("GET", "/result")),
        ("stack", ("GET", "/stack")),
        ("cancel", ("POST", "/cancel")),
        ("redrive", ("POST", "/redrive")),
        ("delete", ("DELETE", "")),
    ],
)
def test_each_call_is_one_request(client: Any, receiver: Receiver, call: str, sent: tuple[str, str]) -> None:
    receiver.answers.append(answer(204) if call == "delete" else answer(200, TASK))
    with client:
        getattr(client, call)(TASK_ID)
    [request] = receiver.requests
    assert (request.method, request.path) == (sent[0], f"/tasks/{TASK_ID}{sent[1]}")


def test_a_submission_can_ask_to_be_held(client: Any, receiver: Receiver) -> None:
    receiver.answers.append(answer(200, {**TASK, "status": "succeeded"}))
    with client:
        assert client.submit("t", None, prefer_wait_s=5, queue="q")["status"] == "succeeded"
    assert receiver.requests[0].headers["prefer"] == "wait=5"
    assert json.loads(receiver.requests[0].body) == {"type": "t", "queue": "q", "payload": None}

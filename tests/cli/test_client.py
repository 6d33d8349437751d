"""The HTTP client against a real receiver: what is tried again, what is not, and how streams are resumed."""

import email.utils
import json
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from taskgate.client import Client, Event, NotFound, Refused, ServiceError, Unreachable, Unsendable
from taskgate.client.errors import refusal
from taskgate.client.http import base_of, options_of
from taskgate.client.patience import Patience
from tests.cli.conftest import TASK_ID, Receiver, answer, hang_up, problem, stream
from tests.cli.drivers import CLIENTS

TASK = {"id": TASK_ID, "type": "t", "status": "queued"}


@pytest.fixture
def blocking(receiver: Receiver) -> Client:
    return Client(receiver.url, patience_s=60)


@pytest.fixture(params=CLIENTS)
def client(receiver: Receiver, request: pytest.FixtureRequest) -> Any:
    """Each of both."""
    return CLIENTS[request.param](receiver.url, patience_s=60)


def test_a_submission_whose_answer_was_lost_is_repeated_under_the_same_key(client: Any, receiver: Receiver) -> None:
    receiver.answers += [hang_up, problem(503, "dependency-unavailable"), answer(202, TASK)]

    with client:
        assert client.submit("t", {"a": 1})["id"] == TASK_ID

    first, second, third = receiver.requests
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == third.headers["idempotency-key"]
    assert first.body == second.body == third.body


def test_each_submission_has_a_key_of_its_own(client: Any, receiver: Receiver) -> None:
    receiver.answers += [answer(202, TASK), answer(202, TASK), answer(202, TASK)]
    with client:
        client.submit("t", 1)
        client.submit("t", 1)
        client.submit("t", 1, idempotency_key="mine")
    one, other, given = [request.headers["idempotency-key"] for request in receiver.requests]
    assert one != other
    assert given == "mine"


def test_a_payload_is_sent_as_it_was_given(client: Any, receiver: Receiver) -> None:
    receiver.answers.append(answer(202, TASK))
    with client:
        client.submit("t", b'{"b": 1.50, "a": 12345678901234567890}', priority=7)
    assert receiver.requests[0].body == b'{"type":"t","priority":7,"payload":{"b": 1.50, "a": 12345678901234567890}}'


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_full_queue_is_tried_again_when_retry_after_says(blocking: Client, receiver: Receiver, form: str) -> None:
    at = int(time.time()) + 2 if form == "date" else time.time() + 1
    later = "1" if form == "seconds" else email.utils.formatdate(at, usegmt=True)
    receiver.answers += [problem(429, "queue-full", Retry_After=later), answer(202, TASK)]
    with blocking:
        blocking.submit("t", None)
    assert time.time() >= at - 0.01


def test_patience_ends_with_the_last_refusal_and_does_not_wait_in_vain(receiver: Receiver) -> None:
    receiver.answers.append(problem(429, "queue-full", "full", Retry_After="60"))
    begun = time.monotonic()
    with Client(receiver.url, patience_s=30) as client, pytest.raises(Refused) as caught:
        client.submit("t", None)
    assert (caught.value.status, caught.value.slug, caught.value.retry_after_s) == (429, "queue-full", 60)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 415, 422, 500])
def test_what_will_not_pass_is_not_repeated(client: Any, receiver: Receiver, status: int) -> None:
    receiver.answers.append(problem(status, "no", "why", errors=[{"pointer": "#/payload/x", "detail": "missing"}]))
    with client, pytest.raises(Refused) as caught:
        client.submit("t", None)
    assert caught.value.errors == [("#/payload/x", "missing")]
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("call", ["get", "result", "cancel", "redrive"])
def test_calls_without_a_key_are_sent_once(client: Any, receiver: Receiver, call: str) -> None:
    receiver.answers.append(hang_up)
    with client, pytest.raises(Unreachable):
        getattr(client, call)(TASK_ID)
    assert len(receiver.requests) == 1


def test_the_key_goes_with_every_request(receiver: Receiver) -> None:
    receiver.answers += [answer(200, TASK), answer(204)]
    with Client(receiver.url, api_key="k") as client:
        client.get(TASK_ID)
        assert list(client.events(TASK_ID)) == []
    assert [request.headers["authorization"] for request in receiver.requests] == ["Bearer k"] * 2


NO_IDS = ["", ".", "..", "../workers?x#y", "no-such-task", TASK_ID.upper(), f"{TASK_ID}\n", "\ud800"]
BY_ID = ["get", "result", "stack", "cancel", "redrive", "delete", "logs", "wait"]


@pytest.mark.parametrize("task_id", NO_IDS)
def test_what_is_no_task_id_is_not_found_and_nothing_is_sent(client: Any, receiver: Receiver, task_id: str) -> None:
    with client:
        for call in BY_ID:
            with pytest.raises(NotFound, match="is no task id"):
                getattr(client, call)(task_id)
        with pytest.raises(NotFound):
            client.wait(task_id, timeout_s=5)
        for call in ("watch", "events"):
            with pytest.raises(NotFound):
                list(getattr(client, call)(TASK_ID, task_id))
    assert receiver.requests == []


def test_an_empty_key_is_sent_as_it_is_and_refused(client: Any, receiver: Receiver) -> None:
    """Another in its place would protect nothing."""
    receiver.answers.append(problem(400, "idempotency-key-invalid"))
    with client, pytest.raises(ServiceError, match="idempotency-key-invalid"):
        client.submit("t", 1, idempotency_key="")
    assert [request.headers["idempotency-key"] for request in receiver.requests] == [""]


@pytest.mark.parametrize("key", ["a\nb", "a\r\nX: y", "schlüssel", " a", "a\x00", "\ud800"])
def test_a_header_that_cannot_be_sent_is_told_at_once(client: Any, receiver: Receiver, key: str) -> None:
    with client:
        with pytest.raises(Unsendable, match="Idempotency-Key"):
            client.submit("t", 1, idempotency_key=key)
        with pytest.raises(Unsendable, match="Last-Event-ID"):
            list(client.events(TASK_ID, last_event_id=key))
    with pytest.raises(ValueError, match="api_key"):
        Client(receiver.url, api_key=key)
    assert receiver.requests == []


@pytest.mark.parametrize(
    "payload",
    ["\ud800", float("nan"), {"a": float("inf")}, object(), {1, 2}, b"\xff".decode("utf-8", "surrogateescape")],
)
def test_a_payload_that_is_no_json_is_told_at_once(client: Any, receiver: Receiver, payload: Any) -> None:
    with client, pytest.raises(Unsendable, match="not JSON"):
        client.submit("t", payload)
    assert isinstance(Unsendable(), ValueError)
    assert receiver.requests == []


def test_a_filter_that_is_no_unicode_is_told_at_once(client: Any, receiver: Receiver) -> None:
    with client, pytest.raises(Unsendable, match="metadata"):
        client.list(metadata={"a": "\ud800"})
    assert receiver.requests == []


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    receiver.answers.append(answer(200, TASK))
    with Client(receiver.url) as client:
        assert client.get(TASK_ID)["status"] == "queued"


@pytest.mark.parametrize(
    "other", [answer(200, b"<html>hello</html>"), answer(302, Location="https://x/"), answer(200, [])]
)
def test_another_service_is_told_apart(client: Any, receiver: Receiver, other: object) -> None:
    receiver.answers.append(other)  # type: ignore[arg-type]
    with client, pytest.raises(Unreachable, match="Taskgate"):
        client.get(TASK_ID)


def test_a_proxys_error_page_is_a_refusal(client: Any, receiver: Receiver) -> None:
    receiver.answers.append(answer(403, b"<html>no</html>"))
    with client, pytest.raises(Refused) as caught:
        client.get(TASK_ID)
    assert caught.value.status == 403


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://x", "http://", "http://x:port"])
def test_a_wrong_url_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        Client(url)


def event(name: str, data: object, *, at: str = "") -> str:
    return f"event: {name}\n" + (f"id: {at}\n" if at else "") + f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def test_a_broken_stream_goes_on_where_it_broke(client: Any, receiver: Receiver) -> None:
    """Broken between events, within one, and while the service was away; live progress has no id and is no place."""
    receiver.answers += [
        stream("retry: 10\n\n" + event("snapshot", {"n": 1}, at="1-0") + event("status", {"n": 2}, at="2-0")),
        stream(event("progress", {"n": 3}) + event("status", {"n": 4}, at="4-0")[:-2]),
        hang_up,
        problem(503, "service-draining"),
        stream(": ping\n\n" + event("status", {"n": 4}, at="4-0") + event("end", {"n": 5}, at="5-0")),
    ]

    with client:
        found = list(client.events(TASK_ID))

    assert [each.data["n"] for each in found] == [1, 2, 3, 4, 5]
    assert [each.id for each in found] == ["1-0", "2-0", "2-0", "4-0", "5-0"]
    asked = [request.headers.get("last-event-id") for request in receiver.requests]
    assert asked == [None, "2-0", "2-0", "2-0", "2-0"]


def test_a_stream_that_was_seen_to_its_end_is_over(client: Any, receiver: Receiver) -> None:
    receiver.answers.append(answer(204))
    with client:
        assert list(client.events(TASK_ID, last_event_id="5-0")) == []
    assert receiver.requests[0].headers["last-event-id"] == "5-0"


def test_only_line_ends_end_a_line(client: Any, receiver: Receiver) -> None:
    text = "one\u2028two\u0085three\x0bfour"
    receiver.answers.append(stream(event("end", {"text": text}, at="1-0")))
    with client:
        assert list(client.events(TASK_ID)) == [Event("1-0", "end", {"text": text}, TASK_ID)]


def test_a_stream_of_an_unknown_task_is_refused_at_once(client: Any, receiver: Receiver) -> None:
    receiver.answers.append(problem(404, "not-found"))
    with client, pytest.raises(Refused, match="404"):
        list(client.events(TASK_ID))


def test_a_stream_that_never_comes_back_is_given_up(receiver: Receiver) -> None:
    receiver.answers += [stream("retry: 10\n\n" + event("snapshot", {}, at="1-0")), *[hang_up] * 100]
    waits: list[float] = []
    client = Client(receiver.url, patience_s=0.5, on_wait=lambda error, delay_s: waits.append(delay_s))
    with client, pytest.raises(ServiceError):
        list(client.events(TASK_ID))
    assert 1 <= len(waits) <= 5


def test_patience_is_for_failures_in_a_row(receiver: Receiver) -> None:
    for n in range(1, 7):
        receiver.answers += [stream("retry: 10\n\n" + event("status", {}, at=f"{n}-0")), hang_up]
    receiver.answers.append(stream(event("end", {}, at="9-0")))
    with Client(receiver.url, patience_s=0.3) as client:
        assert len(list(client.events(TASK_ID))) == 7


def test_pauses_grow_and_spread() -> None:
    first, tenth = [], []
    for _ in range(200):
        patience = Patience(1e6)
        pauses = [patience.delay_s(Unreachable("away")) for _ in range(10)]
        first.append(pauses[0])
        tenth.append(pauses[-1])
    assert 0.1 <= min(first) < 0.12 < 0.18 < max(first) <= 0.2
    assert 2.5 <= min(tenth) < 3 < 4.5 < max(tenth) <= 5


def test_success_makes_the_next_failure_a_first_one() -> None:
    patience = Patience(0)
    with pytest.raises(Unreachable):
        patience.delay_s(Unreachable("away"))
    patience = Patience(60)
    for _ in range(8):
        patience.delay_s(Unreachable("away"))
    patience.reset()
    assert patience.delay_s(Unreachable("away")) <= 0.2


def test_what_the_service_asks_for_is_spread_and_never_shortened() -> None:
    asked = [Patience(1e6).delay_s(refusal(429, {}, retry_after="10")) for _ in range(200)]
    assert 10 <= min(asked) < 10.3 < 11.7 < max(asked) <= 12


def test_the_last_pause_is_the_one_that_was_asked_for() -> None:
    """A spread that goes beyond the client's patience is not taken for a refusal."""
    asked = [Patience(10.5).delay_s(refusal(429, {}, retry_after="10")) for _ in range(50)]
    assert 10 <= min(asked) <= max(asked) <= 10.5


@pytest.mark.parametrize(("url", "verified"), [("https://localhost", True), ("http://localhost", False)])
def test_certificates_are_verified_wherever_there_are_any(url: str, verified: bool) -> None:
    context = options_of(base_of(url), api_key=None, timeout_s=1)["verify"]
    assert bool(context) is verified
    assert not verified or (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_ssl_cert_file_names_whom_to_trust_also_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy of the environment is not asked there; a certificate of one's own is what loopback has."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nobody.pem"))
    (tmp_path / "nobody.pem").write_text("")
    with pytest.raises(ssl.SSLError):
        options_of(base_of("https://localhost"), api_key=None, timeout_s=1)

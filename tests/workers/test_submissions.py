"""What a handler submits or asks for is bounded at the call, as over HTTP."""

from typing import Any

import pytest

from taskgate import Retry, testing
from taskgate.contract.limits import MAX_DELAY_S, MAX_TIMEOUT_S


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"priority": True}, TypeError),
        ({"priority": 5.0}, TypeError),
        ({"priority": -1}, ValueError),
        ({"delay_s": "1"}, TypeError),
        ({"delay_s": True}, TypeError),
        ({"delay_s": 1e300}, ValueError),
        ({"delay_s": 10**400}, ValueError),
        ({"delay_s": float("inf")}, ValueError),
        ({"deadline_s": 0}, ValueError),
        ({"deadline_s": 1e300}, ValueError),
        ({"deadline_s": float("nan")}, ValueError),
        ({"timeout_s": True}, TypeError),
        ({"timeout_s": MAX_TIMEOUT_S + 1}, ValueError),
        ({"max_attempts": 2.5}, TypeError),
        ({"max_attempts": 0}, ValueError),
        ({"max_attempts": 101}, ValueError),
        ({"queue": 5}, TypeError),
        ({"queue": "a/b"}, ValueError),
        ({"task_type": None}, TypeError),
        ({"metadata": [1]}, TypeError),
        ({"metadata": {"a": object()}}, ValueError),
        ({"metadata": {"a": float("nan")}}, ValueError),
        ({"metadata": {"a": "x" * 4096}}, ValueError),
        ({"payload": "x" * 1024 * 1024}, ValueError),
        ({"payload": "\ud800"}, ValueError),
        ({"unique_key": ""}, ValueError),
        ({"unique_key": "x" * 256}, ValueError),
        ({"unique_key": "é"}, ValueError),
        ({"unique_key": "a\n"}, ValueError),
        ({"unique_key": 7}, TypeError),
        ({"unique_key": "u", "on_conflict": "no"}, ValueError),
        ({"on_conflict": "replace"}, ValueError),
        ({"concurrency_key": ""}, ValueError),
        ({"concurrency_key": b"c"}, TypeError),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_submission_out_of_bounds_is_refused_at_the_call(options: dict[str, Any], error: type[Exception]) -> None:
    attempt = testing.attempt()

    with pytest.raises(error):
        attempt.submit(**{"task_type": "a", **options})
    assert attempt.submitted == []


def test_a_submission_is_taken_as_it_was_at_the_call() -> None:
    attempt = testing.attempt()
    metadata = {"order": 7}

    attempt.submit("a", metadata=metadata, delay_s=MAX_DELAY_S, timeout_s=MAX_TIMEOUT_S, max_attempts=100, priority=9)
    metadata["order"] = 8

    assert attempt.submitted[0].metadata == b'{"order":7}'


def test_a_submission_has_its_keys() -> None:
    attempt = testing.attempt()
    attempt.submit("a", unique_key="u" * 255, on_conflict="replace", concurrency_key=" ~")
    [task] = attempt.submitted
    assert (task.unique_key, task.on_conflict, task.concurrency_key) == ("u" * 255, "replace", " ~")


@pytest.mark.parametrize("key", ["unique_key", "concurrency_key"])
def test_no_key_is_taken_that_would_not_hold(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several partitions it could belong to another one than what a task submits."""
    attempt = testing.attempt()
    monkeypatch.setattr(type(attempt), "keys_hold", False)
    with pytest.raises(ValueError, match="TASKGATE_PARTITIONS"):
        attempt.submit("a", **{key: "k"})  # type: ignore[arg-type]
    attempt.submit("a")


@pytest.mark.parametrize("text", [(), ("",)])
def test_who_waits_need_not_say_what_for(text: tuple[str, ...]) -> None:
    attempt = testing.attempt()

    with attempt.waiting(*text):
        assert attempt.waits == ["something outside"]


@pytest.mark.parametrize("after_s", [True, "1", [1]])
def test_a_retry_after_no_number_is_refused(after_s: Any) -> None:
    with pytest.raises(TypeError):
        Retry(after_s)

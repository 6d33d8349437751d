"""`taskgate stack`: the text alone on standard output, why there is none beside it, and what scripts decide by."""

import json
from typing import Any

import pytest

from tests.cli.conftest import TASK_ID, Cli, Receiver, answer, problem

STACK: dict[str, Any] = {
    "task_id": TASK_ID,
    "source": "loop",
    "shared": False,
    "threads": [],
    "text": 'handler (most recent call first):\n  File "/a/b.py", line 3 in in\x1bner',
    "reason": None,
}
NONE = {**STACK, "source": None, "threads": None, "text": None}


def test_the_stack_is_printed_and_nothing_in_it_steers_the_terminal(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(200, STACK))
    done = cli("stack", TASK_ID, "--url", receiver.url)

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == 'handler (most recent call first):\n  File "/a/b.py", line 3 in in ner\n'
    assert receiver.requests[0].path == f"/tasks/{TASK_ID}/stack"


def test_as_json_it_is_what_the_service_sent(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(200, STACK))

    assert json.loads(cli("stack", TASK_ID, "--json", "--url", receiver.url).stdout) == STACK


def test_a_stack_that_may_be_anothers_says_so(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(200, {**STACK, "source": "faulthandler", "shared": True}))
    done = cli("stack", TASK_ID, "--url", receiver.url)

    assert done.exit_code == 0
    assert "maybe another task" in done.stderr


@pytest.mark.parametrize(
    ("reason", "said"),
    [("paused", "its process is stopped"), ("signal_taken", "SIGRTMAX - 1"), ("of_later", "of_later")],
)
def test_why_there_is_none_is_said(cli: Cli, receiver: Receiver, reason: str, said: str) -> None:
    receiver.answers.append(answer(200, {**NONE, "reason": reason}))
    done = cli("stack", TASK_ID, "--url", receiver.url)

    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr


def test_one_that_does_not_run_is_refused(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(problem(409, "not-running", "The task is succeeded."))
    done = cli("stack", TASK_ID, "--url", receiver.url)

    assert done.exit_code == 7
    assert "The task is succeeded." in done.stderr
    assert "7 when it does not run" in " ".join(cli("stack", "--help").stdout.split())

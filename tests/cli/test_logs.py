"""`taskgate logs`."""

import json
from typing import Any

import pytest

from tests.cli.conftest import TASK_ID, Cli, Receiver, answer, problem, stream


def entry(number: int, text: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"{number}-0",
        "attempt": 1,
        "stream": "stdout",
        "at": "2026-01-31T00:00:00.000Z",
        "text": text,
        **more,
    }


def page(*items: dict[str, Any], following: str | None = None, lost: int = 0) -> Any:
    return answer(200, {"items": list(items), "truncated": lost > 0, "dropped_bytes": lost, "next": following})


def block(name: str, data: dict[str, Any], event_id: str = "") -> str:
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"


def test_all_pages_are_shown_as_they_were_printed(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [
        page(entry(1, "a\nb"), following="1-0"),
        page(entry(2, "c\x1b[31m\n", dropped_bytes=3), lost=3),
    ]
    done = cli("logs", TASK_ID, "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (0, "a\nbc\x1b[31m\n"), "no terminal: nothing is changed"
    assert "3 bytes" in done.stderr
    assert [request.path for request in receiver.requests] == [
        f"/tasks/{TASK_ID}/logs",
        f"/tasks/{TASK_ID}/logs?after=1-0",
    ]


def test_what_was_dropped_is_said(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [page(entry(5, "rest\n"), lost=70)]
    done = cli("logs", TASK_ID, "--url", receiver.url)
    assert (done.stdout, done.stderr) == ("rest\n", "taskgate: 70 bytes of its output were dropped\n")


def test_following_goes_on_where_the_pages_ended(cli: Cli, receiver: Receiver) -> None:
    more = {"seq": 4, "attempt": 1, "stream": "stderr", "at": "2026-01-31T00:00:01.000Z", "text": "more\n"}
    end = {"seq": 5, "id": TASK_ID, "status": "succeeded"}
    receiver.answers += [
        page(entry(1, "a\n")),
        stream(block("log", more, "2-0") + block("end", end, "3-0")),
    ]
    done = cli("logs", TASK_ID, "--follow", "--json", "--url", receiver.url)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        entry(1, "a\n"),
        {"id": "2-0", "attempt": 1, "stream": "stderr", "at": "2026-01-31T00:00:01.000Z", "text": "more\n"},
    ]
    assert receiver.requests[1].headers["last-event-id"] == "1-0"


def test_there_is_no_such_task(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [problem(404, "not-found", "There is no such task.")]
    assert cli("logs", TASK_ID, "--url", receiver.url).exit_code == 6


def test_a_terminal_is_not_steered(cli: Cli, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskgate.cli import logs

    class Terminal:
        shown = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            self.shown += text

        def flush(self) -> None:
            pass

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    logs._print_text(entry(1, "a\x1b[2J\tb\x9b1m\r\nc\n"))
    assert terminal.shown == "a [2J\tb 1m \nc\n"

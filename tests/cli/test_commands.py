"""Client commands against a real receiver: output, exit codes, and terminals."""

import io
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from taskgate.cli import main
from taskgate.cli.text import print_json
from taskgate.client import Progress, Task
from tests.cli.conftest import TASK_ID, Answer, Cli, Receiver, answer, hang_up, problem, stream

OTHER_ID = TASK_ID[:-1] + "c"
TASK: Task = {"id": TASK_ID, "type": "demo.echo", "status": "queued", "attempt": 0, "max_attempts": 3}
RUNNING: Task = {**TASK, "status": "running", "attempt": 1}
HALF: Progress = {"current": 5, "total": 10, "percent": 50, "unit": "files", "stage": "reading", "message": "os.py"}
SUCCEEDED: Task = {
    **TASK,
    "status": "succeeded",
    "attempt": 1,
    "progress": HALF,
    "result_url": f"/tasks/{TASK_ID}/result",
}
FAILED: Task = {
    **TASK,
    "status": "failed",
    "attempt": 3,
    "error": {"kind": "exception", "message": "boom", "traceback": "A\nB"},
}


def events(*named: tuple[str, Mapping[str, Any]]) -> str:
    return "".join(f"event: {name}\nid: {n}-0\ndata: {json.dumps(data)}\n\n" for n, (name, data) in enumerate(named, 1))


SUCCESS = events(("snapshot", RUNNING), ("progress", HALF), ("status", {"status": "succeeded"}), ("end", SUCCEEDED))
FAILURE = events(("snapshot", RUNNING), ("status", {"status": "failed"}), ("end", FAILED))


def test_submit_prints_the_id_alone(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(202, TASK))
    options = ["--queue", "mail", "--priority", "9", "--delay-s", "1.5", "--max-attempts", "2", "--timeout-s", "60"]
    more = ["--metadata", '{"for": "me"}', "--idempotency-key", "k", "--deadline-s", "9"]
    keys = ["--unique-key", "u", "--on-conflict", "replace", "--concurrency-key", "c"]
    done = cli("submit", "demo.echo", '{"text": "hello"}', "--url", receiver.url, *options, *more, *keys)

    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{TASK_ID}\n", "")
    assert json.loads(receiver.requests[0].body) == {
        "type": "demo.echo",
        "payload": {"text": "hello"},
        "queue": "mail",
        "priority": 9,
        "delay_s": 1.5,
        "deadline_s": 9,
        "max_attempts": 2,
        "timeout_s": 60,
        "metadata": {"for": "me"},
        "unique_key": "u",
        "on_conflict": "replace",
        "concurrency_key": "c",
    }
    assert receiver.requests[0].headers["idempotency-key"] == "k"


@pytest.mark.parametrize("source", ["argument", "file", "stdin"])
def test_the_payload_comes_from_argument_file_or_standard_input(
    cli: Cli, receiver: Receiver, tmp_path: Path, source: str
) -> None:
    text = '{"häß": [1.0]}'
    (tmp_path / "request.json").write_text(text)
    receiver.answers.append(answer(202, TASK))
    given = {"argument": text, "file": f"@{tmp_path}/request.json", "stdin": "-"}[source]

    done = cli("submit", "t", given, env={"TASKGATE_URL": receiver.url}, stdin=text)

    assert done.exit_code == 0
    assert receiver.requests[0].body == f'{{"type":"t","payload":{text}}}'.encode()


@pytest.mark.parametrize("given", ["{", "NaN", '{"a": Infinity}', "", "@/no/such/file", "-", "[" * 5000])
def test_a_payload_that_is_no_json_is_wrong_usage(cli: Cli, receiver: Receiver, given: str) -> None:
    done = cli("submit", "t", given, "--url", receiver.url, stdin=b"\xff\xfe")
    assert done.exit_code == 2
    assert receiver.requests == []


@pytest.mark.parametrize(
    "args",
    [
        ["submit", "t", "1", "--watch", "--wait"],
        ["submit", "t", "1", "--metadata", "[]"],
        ["submit", "t", "1", "--priority", "10"],
        ["submit", "t"],
        ["list", "--metadata", "a"],
        ["list", "--limit", "0"],
        ["delete"],
        ["watch"],
        ["status", TASK_ID, "--url", "nowhere"],
        ["no-such-command"],
    ],
)
def test_wrong_usage_is_exit_2(cli: Cli, args: list[str]) -> None:
    assert cli(*args).exit_code == 2


@pytest.mark.parametrize("url", ["nowhere", "ftp://host", "http://[::"])
def test_a_url_that_is_none_names_its_variable(cli: Cli, url: str) -> None:
    done = cli("status", TASK_ID, env={"TASKGATE_URL": url})
    assert done.exit_code == 2
    assert done.stderr.endswith("set TASKGATE_URL\n")


@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_submit_that_waits_ends_with_the_result(cli: Cli, receiver: Receiver, how: str) -> None:
    receiver.answers += [answer(202, TASK), stream(SUCCESS), answer(200, b'{"text":"hello"}')]
    done = cli("submit", "demo.echo", "{}", how, "--url", receiver.url)

    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[-1] == '{"text":"hello"}'
    assert (len(lines) == 1) == (how == "--wait")


@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_submit_that_waits_tells_a_failure(cli: Cli, receiver: Receiver, how: str) -> None:
    receiver.answers += [answer(202, TASK), stream(FAILURE)]
    done = cli("submit", "demo.echo", "{}", how, "--url", receiver.url)

    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "taskgate: failed · attempt 3 · exception: boom"


def test_a_service_that_is_away_is_one_line_and_exit_3(cli: Cli) -> None:
    done = cli("status", TASK_ID, "--url", "http://127.0.0.1:1")
    assert done.exit_code == 3
    assert done.stderr == "taskgate: http://127.0.0.1:1 cannot be reached: [Errno 111] Connection refused\n"


def test_waiting_for_the_service_is_told(cli: Cli) -> None:
    done = cli("submit", "t", "1", "--url", "http://127.0.0.1:1", "--retry-for", "0.3")
    assert done.exit_code == 3
    assert "; trying again in 0." in done.stderr.splitlines()[0]


def test_a_refusal_is_one_line_with_what_is_wrong_where(cli: Cli, receiver: Receiver) -> None:
    faults = [{"pointer": "#/payload/x", "detail": "missing"}, {"pointer": "#/priority", "detail": "too big"}]
    receiver.answers.append(problem(422, "validation-error", "The body does not fit.", errors=faults))
    done = cli("submit", "t", "1", "--url", receiver.url)

    assert done.exit_code == 7
    said = "validation-error; #/payload/x: missing; #/priority: too big (422 validation-error)"
    assert done.stderr == f"taskgate: refused: {said}\n"


def test_a_full_queue_says_when_to_come_back(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(problem(429, "queue-full", "queue 'default' is full", Retry_After="60"))
    done = cli("submit", "t", "1", "--url", receiver.url)
    assert done.exit_code == 7
    assert done.stderr.endswith("(429 queue-full); try again in 60 s\n")


@pytest.mark.parametrize(("task", "code"), [(TASK, 0), (RUNNING, 0), (SUCCEEDED, 0), (FAILED, 1)])
def test_the_exit_code_of_status_tells_the_end(cli: Cli, receiver: Receiver, task: dict[str, Any], code: int) -> None:
    receiver.answers += [answer(200, task), answer(200, task)]
    shown = cli("status", TASK_ID, "--url", receiver.url)
    raw = cli("status", TASK_ID, "--json", "--url", receiver.url)

    assert (shown.exit_code, raw.exit_code) == (code, code)
    assert f"status             {task['status']}" in shown.stdout
    assert json.loads(raw.stdout) == task
    assert receiver.requests[0].headers["cache-control"] == "no-cache"


def test_status_shows_the_traceback_line_by_line(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(200, FAILED))
    lines = cli("status", TASK_ID, "--url", receiver.url).stdout.splitlines()
    assert [line.strip() for line in lines[-3:]] == ["error              exception: boom", "A", "B"]


def test_what_a_task_writes_cannot_steer_the_terminal(cli: Cli, receiver: Receiver) -> None:
    evil = {"kind": "exception", "message": "\x1b]0;owned\x07\x1b[2J\r\n[red]x", "traceback": "\x1b[1m\x9b"}
    failed = {**FAILED, "error": evil, "metadata": {"x": "\x1b[3m"}}
    text = events(("snapshot", failed), ("end", failed))
    listed = answer(200, {"items": [{**failed, "type": "\x1b[1m[red]x"}]})
    receiver.answers += [answer(200, failed), answer(200, {"items": [failed]}), listed, stream(text)]
    for command in ("status", "dead-letters", "list", "watch"):
        args = [] if command in ("dead-letters", "list") else [TASK_ID]
        done = cli(command, *args, "--url", receiver.url)
        assert "[red]x" in done.output
        assert not any(char in done.output for char in "\x1b\x07\x9b\r")


@pytest.mark.parametrize(("command", "code", "status"), [("cancel", 202, "canceling"), ("redrive", 202, "queued")])
def test_cancel_and_redrive_print_the_new_status(
    cli: Cli, receiver: Receiver, command: str, code: int, status: str
) -> None:
    receiver.answers += [answer(code, {**TASK, "status": status}), problem(409, "not-now", "it is succeeded")]
    done = cli(command, TASK_ID, "--url", receiver.url)
    refused = cli(command, TASK_ID, "--url", receiver.url)

    assert (done.exit_code, done.stdout) == (0, f"{status}\n")
    assert (refused.exit_code, refused.stderr) == (7, "taskgate: refused: it is succeeded (409 not-now)\n")
    assert receiver.requests[0].path == f"/tasks/{TASK_ID}/{command}"


def test_watch_without_a_terminal_prints_a_line_for_each_change_worth_one(cli: Cli, receiver: Receiver) -> None:
    near = {**HALF, "current": 5.1, "percent": 51}
    text = events(
        ("snapshot", TASK),
        ("status", {"status": "running", "attempt": 1}),
        ("progress", HALF),
        ("progress", near),
        ("progress", {**HALF, "stage": "writing"}),
        ("custom", {"name": "mine"}),
        ("status", {"status": "retrying", "attempt": 1, "error": {"kind": "exception", "message": "boom"}}),
        ("status", {"status": "running", "attempt": 2}),
        ("status", {"status": "succeeded", "attempt": 2}),
        ("end", {**SUCCEEDED, "attempt": 2, "error": None}),
    )
    receiver.answers.append(stream(text))
    done = cli("watch", TASK_ID, "--url", receiver.url)

    head = f"{TASK_ID}  demo.echo  "
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{head}queued",
        f"{head}running",
        f"{head} 50 %  running · 5/10 files · reading · os.py",
        f"{head} 50 %  running · 5/10 files · writing · os.py",
        f"{head}retrying · exception: boom",
        f"{head}running · attempt 2 · exception: boom",
        f"{head}succeeded · attempt 2",
    ]


def test_watch_shows_several_tasks_and_fails_if_one_did(cli: Cli, receiver: Receiver) -> None:
    other = {**SUCCEEDED, "id": OTHER_ID, "task_id": OTHER_ID}
    for ended, code in ((SUCCEEDED, 0), (FAILED, 1), ({**TASK, "status": "canceled"}, 4)):
        receiver.answers.append(stream(events(("end", {**ended, "task_id": TASK_ID}), ("end", other))))
        done = cli("watch", TASK_ID, OTHER_ID, "--url", receiver.url)
        assert done.exit_code == code
        assert [line.split()[0] for line in done.stdout.splitlines()] == [TASK_ID, OTHER_ID]
    assert {request.path for request in receiver.requests} == {f"/events?task={TASK_ID}&task={OTHER_ID}&from=now"}


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_watch_of_one_that_was_deleted_ends_with_the_others(cli: Cli, receiver: Receiver, as_json: list[str]) -> None:
    other = {**SUCCEEDED, "id": OTHER_ID, "task_id": OTHER_ID}
    receiver.answers.append(stream(events(("gone", {"task_id": TASK_ID}), ("end", other))))
    done = cli("watch", TASK_ID, OTHER_ID, *as_json, "--url", receiver.url)
    assert (done.exit_code, done.stderr) == (6, f"taskgate: {TASK_ID} was deleted before its end was seen\n")


def test_more_tasks_than_a_stream_has_room_for_are_watched_on_several(cli: Cli, receiver: Receiver) -> None:
    ids = [f"{TASK_ID[:-3]}{n:03}" for n in range(101)]
    ends = [("end", {**SUCCEEDED, "id": one, "task_id": one}) for one in ids]
    # Whichever stream is opened first: what is told of others is none of its business.
    receiver.answers += [stream(events(*ends))] * 2
    done = cli("watch", *ids, "--json", "--url", receiver.url)
    assert done.exit_code == 0
    assert sorted(json.loads(line)["task_id"] for line in done.stdout.splitlines()) == ids
    assert sorted(request.path.count("task=") for request in receiver.requests) == [0, 100]


def test_watch_as_json_is_one_event_a_line(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(stream(SUCCESS))
    done = cli("watch", TASK_ID, "--json", "--url", receiver.url)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["snapshot", "progress", "status", "end"]
    assert lines[1] == {"task_id": TASK_ID, "id": "2-0", "event": "progress", "data": HALF}


def test_watch_of_an_unknown_task_is_refused(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(problem(404, "not-found", "There is no such task."))
    done = cli("watch", TASK_ID, "--url", receiver.url)
    assert (done.exit_code, done.stderr) == (6, "taskgate: refused: There is no such task. (404 not-found)\n")


def test_watch_draws_bars_on_a_terminal(receiver: Receiver) -> None:
    receiver.answers.append(stream(SUCCESS))
    receiver.numbers = hang_up
    code, shown = on_a_terminal("watch", TASK_ID, "--url", receiver.url)
    assert code == 0
    assert "demo.echo 456789ab ━━━━━━━━━━━━━━━━━━━━━━━━ 100 %" in shown
    assert "succeeded" in shown


def on_a_terminal(*args: str, **settings: str) -> tuple[int, str]:
    """Exit code and what a terminal of 160 columns was sent, without its colours."""
    ours, theirs = pty.openpty()
    env = {"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "160", "NO_COLOR": "1", **settings}
    process = subprocess.Popen(
        [sys.executable, "-m", "taskgate", *args], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    shown = b""
    with process:
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    return process.returncode, shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: the last process that had it open is gone
        return b""


def test_workers_shows_each_pool(cli: Cli, receiver: Receiver) -> None:
    children = [{"pid": 1, "kind": "sync", "state": "busy", "tasks": [TASK_ID]}, {"pid": 2, "tasks": []}]
    worker = {"id": "host-1-a", "state": "ready", "children": children, "whole": True, "guard": "ok"}
    silent = {"id": "host-2-b", "state": "ready", "alive": False, "guard": "ok", "queues": ["a", "b"]}
    receiver.answers.append(answer(200, {"items": [worker, silent]}))
    lines = cli("workers", "--url", receiver.url).stdout.splitlines()

    assert [line.split() for line in lines[1:]] == [
        ["host-1-a", "ready", "yes", "2", "1", "ok", "-"],
        ["host-2-b", "silent", "no", "0", "0", "ok", "a,b"],
    ]


def test_list_turns_pages_until_it_has_enough(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [
        answer(200, {"items": [TASK], "next_cursor": "one"}),
        answer(200, {"items": [], "next_cursor": "two"}),
        answer(200, {"items": [FAILED], "next_cursor": "three"}),
    ]
    filters = ["--status", "failed", "--metadata", "a=b=c", "--after", "2026-01-01T00:00:00Z", "--limit", "2"]
    done = cli("list", *filters, "--json", "--url", receiver.url)
    assert json.loads(done.stdout) == [TASK, FAILED]
    query = "/tasks?status=failed&created_after=2026-01-01T00%3A00%3A00Z&limit={}{}&metadata.a=b%3Dc"
    assert [request.path for request in receiver.requests] == [
        query.format(2, ""),
        query.format(1, "&cursor=one"),
        query.format(1, "&cursor=two"),
    ]


def test_list_shows_a_task_a_line(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(200, {"items": [{**TASK, "created_at": "2026-01-01T00:00:00Z"}]}))
    lines = cli("list", "--url", receiver.url).stdout.splitlines()
    assert lines[0].split() == ["ID", "TYPE", "STATUS", "ATTEMPT", "CREATED"]
    assert lines[1].split() == [TASK_ID, "demo.echo", "queued", "0/3", "2026-01-01T00:00:00Z"]


def test_delete_is_quiet_and_refuses_what_has_not_ended(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [answer(204), problem(409, "not-finished", "it is running")]
    done = cli("delete", OTHER_ID, TASK_ID, "--url", receiver.url)
    assert (done.exit_code, done.output) == (7, "taskgate: refused: it is running (409 not-finished)\n")
    assert [request.method for request in receiver.requests] == ["DELETE", "DELETE"]


@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_a_submission_that_waits_can_end_as_json(cli: Cli, receiver: Receiver, how: str) -> None:
    receiver.answers += [answer(202, TASK), stream(SUCCESS), answer(200, b"1")]
    lines = cli("submit", "t", "{}", how, "--json", "--url", receiver.url).stdout.splitlines()
    if how == "--wait":
        assert [json.loads(line)["status"] for line in lines] == ["succeeded"]
    else:
        assert [json.loads(line)["event"] for line in lines[:-1]] == ["snapshot", "progress", "status", "end"]
        assert lines[-1] == "1"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (problem(404, "not-found"), 6),
        (problem(410, "gone"), 6),
        (problem(409, "not-dead"), 7),
        (problem(429, "queue-full", Retry_After="99"), 7),
        (problem(503, "service-draining"), 3),
        (answer(200, b"<html>"), 3),
        (hang_up, 3),
    ],
)
def test_the_exit_code_tells_why_the_service_did_not_do_it(
    cli: Cli, receiver: Receiver, error: Answer, code: int
) -> None:
    receiver.answers.append(error)
    assert cli("redrive", TASK_ID, "--url", receiver.url).exit_code == code


@pytest.mark.parametrize("command", ["status", "watch", "cancel", "delete", "logs", "stack"])
def test_what_is_no_task_id_is_not_there(cli: Cli, receiver: Receiver, command: str) -> None:
    done = cli(command, "..", "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (6, "")
    assert done.stderr == "taskgate: refused: '..' is no task id. (404 not-found)\n"
    assert receiver.requests == []


def test_a_key_that_cannot_be_sent_is_wrong_usage(cli: Cli, receiver: Receiver) -> None:
    done = cli("submit", "t", "1", "--idempotency-key", "a\nb", "--url", receiver.url)
    assert done.exit_code == 2
    assert "Idempotency-Key" in done.stderr


@pytest.mark.parametrize(("status", "code"), [("failed", 1), ("canceled", 4), ("expired", 5), ("new", 0)])
def test_each_end_has_an_exit_code(cli: Cli, receiver: Receiver, status: str, code: int) -> None:
    receiver.answers.append(answer(200, {**TASK, "status": status}))
    assert cli("status", TASK_ID, "--url", receiver.url).exit_code == code


COMMANDS = ["up", "gateway", "worker", "submit", "watch", "status", "list", "cancel", "redrive", "delete", "stack"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(cli: Cli, command: str) -> None:
    done = cli(command, "--help")
    assert done.exit_code == 0
    assert f"taskgate {command}" in done.stdout.partition("Examples:")[2]


def test_the_exit_codes_are_documented(cli: Cli) -> None:
    text = " ".join(cli("--help").stdout.split())
    assert "Exit codes: 0 done" in text
    assert "3 the service cannot be reached" in text
    assert "70 a fault of the command line" in text


def process(*args: str, **settings: str) -> "subprocess.Popen[bytes]":
    env = {"PATH": os.environ["PATH"], **settings}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "taskgate", *args], stdout=pipe, stderr=pipe, env=env)


def test_what_cannot_be_shown_is_replaced(receiver: Receiver) -> None:
    receiver.answers.append(stream(events(("end", {**FAILED, "error": {"kind": "exception", "message": "ü"}}))))
    with process("watch", TASK_ID, "--url", receiver.url, PYTHONIOENCODING="ascii") as watch:
        shown, _ = watch.communicate()
    assert (watch.returncode, shown.split(b"demo.echo  ")[1]) == (1, b"failed ? attempt 3 ? exception: ?\n")


@pytest.mark.parametrize(("encoding", "text", "shown"), [("ascii", "ü", b"\\u00fc"), ("utf-8", "\ud800", b"\\ud800")])
def test_json_stays_json_whatever_can_be_shown(
    monkeypatch: pytest.MonkeyPatch, encoding: str, text: str, shown: bytes
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, errors="replace"))
    print_json([text])
    assert written.getvalue() == b'["' + shown + b'"]\n'


def test_it_ends_quietly_when_nobody_reads_it_any_more(receiver: Receiver) -> None:
    """One line at a time is printed, and the last ones when the reader has gone."""
    gone = threading.Event()

    def told(handler: Any) -> None:
        stream(events(("snapshot", RUNNING)))(handler)
        gone.wait(30)
        handler.wfile.write(events(*[("custom", {"name": "mine"})] * 3, ("end", SUCCEEDED)).encode())

    receiver.answers.append(told)
    with process("watch", TASK_ID, "--json", "--url", receiver.url) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert watch.stdout.readline()
        watch.stdout.close()
        gone.set()
        assert watch.stderr.read() == b""
    assert watch.returncode == 141


def test_a_crash_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def crash(self: object, task_id: str, **options: object) -> NoReturn:
        raise KeyError(task_id)

    monkeypatch.setattr("taskgate.client.Client.get", crash)
    monkeypatch.setattr(sys, "argv", ["taskgate", "status", TASK_ID])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 70
    assert "KeyError" in capsys.readouterr().err

"""The load test's verdict: each rule that users' ledger and journal hold the service to, seen broken; its reports."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtest import bodies, charts, handlers, machine, run, samples, shapes, sse
from loadtest.journal import Journal, Limits
from loadtest.ledger import EXPECTED, PATIENCE_S, Ledger
from taskgate.testing import attempt
from tests.conftest import eventually


def test_the_ledger_holds_only_when_every_accepted_task_was_read_in_a_final_state() -> None:
    ledger = Ledger()
    assert ledger.close() == ["no task was accepted"]
    ledger.accepted("a")
    assert not ledger.saw("a", "running")
    assert ledger.close() == ["1 accepted tasks reached no final state: ['a']"]
    ledger.told("a", "succeeded")
    assert ledger.open() == ["a"], "what a stream tells was not read"
    assert ledger.saw("a", "succeeded")
    assert (ledger.close(), ledger.open()) == ([], [])


@pytest.mark.parametrize("what", EXPECTED)
@pytest.mark.parametrize("status", [0, 404, 500, 503])
def test_an_answer_that_no_healthy_service_gives_is_broken(what: str, status: int) -> None:
    ledger = Ledger()
    ledger.answered(what, status, "1")
    assert list(ledger.broken) == [f"{what}: {status or 'no answer'}"]
    for expected in EXPECTED[what]:
        ledger.answered(what, expected, "1")
    assert ledger.broken.total() == 1


@pytest.mark.parametrize("retry_after", [None, "", "0", "soon", "1.5", "-1"])
def test_a_refusal_must_say_in_whole_seconds_when_to_come_again(retry_after: str | None) -> None:
    ledger = Ledger()
    assert ledger.answered("submit", 429, "2") == 2.0
    assert not ledger.broken
    assert ledger.answered("submit", 429, retry_after) == 1.0
    assert list(ledger.broken) == [f"submit: 429 with Retry-After {retry_after!r}"]


def test_whoever_obeys_for_too_long_is_kept_out_and_whoever_gets_in_is_counted() -> None:
    ledger = Ledger()
    assert not ledger.kept_out(PATIENCE_S)
    for number, refusals in enumerate([0, 1, 1, 3]):
        ledger.accepted(str(number), refusals=refusals)
    assert not ledger.broken
    assert ledger.summary() == "4 accepted (4 open), 0 refused, 3 got in after refusals (67% after one, at most 3)"
    assert ledger.kept_out(PATIENCE_S + 1)
    assert list(ledger.broken) == ["obeyed Retry-After for 60 s and was not let in"]


def test_an_end_is_the_due_one_for_good_and_the_one_that_the_stream_told() -> None:
    ledger = Ledger()
    ledger.accepted("a")
    ledger.accepted("a")
    ledger.saw("a", "failed")
    ledger.saw("a", "succeeded")
    ledger.accepted("b", due=("failed",))
    ledger.told("b", "succeeded")
    ledger.saw("b", "failed")
    ledger.result(whole=True)
    ledger.result(whole=False)
    assert ledger.close() == [
        "1 × a result is not that of its task's payload",
        "1 × an id was given out twice",
        "1 × failed became succeeded",
        "1 × failed, where succeeded was due",
        "1 × the stream told succeeded, the status says failed",
    ]


@pytest.mark.parametrize(
    ("answer", "end", "holds"),
    [
        (200, "canceled", True),
        (200, "succeeded", False),
        (202, "canceled", True),
        (202, "succeeded", True),
        (202, "failed", False),
        (409, "succeeded", True),
        (409, "canceled", False),
    ],
)
def test_a_cancel_leads_to_what_its_answer_says(answer: int, end: str, holds: bool) -> None:
    ledger = Ledger()
    ledger.accepted("a")
    ledger.canceled("a", answer)
    ledger.saw("a", end)
    assert (ledger.close() == []) == holds


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_journal_has_a_row_for_each_second_in_which_something_happened() -> None:
    clock = Clock()
    journal = Journal(clock)
    journal.users(3)
    for took_ms in (10, 20, 30):
        journal.answered("submit", 202, took_ms)
    journal.answered("submit", 429, 1000)
    journal.answered("status", 200, 5)
    clock.now_s += 2.5
    journal.event(at_ms=clock.now_s * 1000 - 250)
    first, second = journal.rows()
    assert first == {
        "at_s": 1000,
        "users": 3,
        "answers": 5,
        "accepted": 3,
        "refused": 1,
        "accepted_p50_ms": 20,
        "accepted_p99_ms": 30,
        "status_p50_ms": 5,
        "status_p99_ms": 5,
    }
    assert (second["at_s"], second["users"], second["age_p99_ms"]) == (1002, None, 250)


def test_times_over_their_limits_are_told_and_so_is_what_nobody_could_measure() -> None:
    clock = Clock()
    journal = Journal(clock)
    for took_ms in range(1, 201):
        journal.answered("submit", 202, took_ms)
        clock.now_s += 0.1
    assert journal.over(Limits()) == []
    assert journal.over(Limits(accepted_ms=199)) == []
    assert journal.over(Limits(accepted_ms=198)) == ["p99 of the 202: 199 ms, limit 198 ms"]
    assert journal.over(Limits(age_ms=1)) == ["p99 of the events' age: not known, limit 1 ms"]
    journal.event(clock.now_s * 1000 - 300)
    assert journal.over(Limits(age_ms=200)) == ["p99 of the events' age: 300 ms, limit 200 ms"]


def test_users_come_and_go_evenly_within_each_stage() -> None:
    stages = [shapes.Stage(10, 100), shapes.Stage(5, 0)]
    assert [shapes.users_at(stages, at_s) for at_s in (0, 5, 9.9, 10, 12.5, 14.99, 15)] == [1, 50, 99, 100, 50, 1, None]


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_shape_is_scaled_in_time_and_users(name: str) -> None:
    whole = shapes.SHAPES[name]
    assert shapes.scaled(whole) == list(whole)
    scaled = shapes.scaled(whole, seconds=5, users=10)
    assert shapes.length_s(scaled) == pytest.approx(5)
    assert shapes.peak(scaled) == 10
    assert shapes.users_at(whole, shapes.length_s(whole) - 0.001) == 1


def test_the_stages_are_those_that_were_asked_for() -> None:
    assert shapes.SHAPES["stages"] == (shapes.Stage(30, 100), shapes.Stage(60, 500), shapes.Stage(10, 0))
    assert run.DEFAULT_S["stages"] == 80


async def test_the_handler_tells_whether_a_body_arrived_as_it_was_sent(tmp_path: Path) -> None:
    for body in bodies.made():
        payload = {"delivery": "d", "steps": 1, "step_s": 0, "fails": False, "body": json.loads(body.raw)}
        assert await handlers.webhook(payload, attempt()) == {"delivery": "d", "sha256": body.digest}
        payload["body"]["big"] -= 1
        assert (await handlers.webhook(payload, attempt()))["sha256"] != body.digest


def test_bodies_come_from_a_folder_or_are_made(tmp_path: Path) -> None:
    sizes = [len(body.raw) for body in bodies.load(None)]
    assert sizes == sorted(sizes)
    assert (1024 <= sizes[0] < 2048, 32 * 1024 <= sizes[-1] < 33 * 1024) == (True, True)
    with pytest.raises(OSError, match="no webhook body"):
        bodies.load(tmp_path)
    (tmp_path / "github").mkdir()
    (tmp_path / "github" / "push.1.json").write_text('{"ref": "x"}')
    (tmp_path / "github" / "manifest.json").write_text("[]")
    assert [(body.event, body.raw) for body in bodies.load(tmp_path)] == [("push", b'{"ref": "x"}')]


def test_bodies_that_cannot_be_sent_are_found_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--results", str(tmp_path / "results"), "--url", "http://127.0.0.1:1", "--bodies"]
    assert run.main([*argv, str(tmp_path / "missing")]) == 1
    assert "no webhook body (*.json) in" in capsys.readouterr().err
    (tmp_path / "broken.json").write_text('{"ref": ')
    assert run.main([*argv, str(tmp_path)]) == 1
    assert "broken.json is no JSON" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("option", ["--users", "--seconds"])
@pytest.mark.parametrize("number", ["0", "-3", "nan"])
def test_numbers_that_mean_no_load_are_refused(option: str, number: str) -> None:
    with pytest.raises(SystemExit) as refused:
        run.main([option, number])
    assert refused.value.code == 2


def test_a_service_that_lacks_the_handlers_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after a minute."""
    monkeypatch.setattr(run, "get_json", lambda *_: {"items": [{"type": "echo", "served": True}]})
    with pytest.raises(OSError, match="no worker serves webhook"):
        run._wait(run.Target("http://127.0.0.1:1", "", []), within_s=0.01)
    said = "loadtest: waits for 0.01 s: no worker serves webhook (TASKGATE_HANDLERS=loadtest.handlers), only echo"
    assert capsys.readouterr().out.strip() == said


@pytest.mark.parametrize(
    "start",
    ["machine.Group(['sleep', '600'], environ=dict(os.environ), log=Path('sleep.log'))", "Popen(['sleep', '600'])"],
    ids=["a group", "one that is no group yet"],
)
async def test_sigterm_more_than_once_leaves_nothing_running(tmp_path: Path, start: str) -> None:
    """As `timeout` sends it: to the command and to its group. Groups have sessions of their own."""
    script = f"""
import os, time
from pathlib import Path
from subprocess import Popen
from loadtest import machine
os.chdir({str(tmp_path)!r})
with machine.leaving_nothing():
    {start}
    time.sleep(600)
"""
    command = machine.Group(
        [sys.executable, "-c", script], environ=machine.clean_environ(), log=tmp_path / "command.log"
    )
    try:

        async def asleep() -> list[int]:
            names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in command.processes()}
            return [pid for pid, name in names.items() if name == "sleep"]

        [sleeper] = await eventually(asleep, bool, within_s=60)
        command.signal(signal.SIGTERM)
        command.signal(signal.SIGTERM)
        assert command.wait(60) == 128 + signal.SIGTERM
        assert not Path(f"/proc/{sleeper}").exists()
    finally:
        command.stop()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    stream = b'retry: 1000\r\n\r\nid: 1\r\nevent: status\r\ndata: {"a": 1}\r\n\r\n: ping\r\n\r\n'
    stream += b"event: end\ndata: {}\n\nevent: cut"
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert list(sse.events(pieces)) == [("status", '{"a": 1}'), ("end", "{}")]


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("/v/bin/python -m taskgate up", "up"),
        ("/v/bin/python -I -S /x/taskgate/up/guard.py 8 20.0 /tmp/data /v/valkey-server", "guard of up"),
        ("/v/valkey-server unixsocket:valkey.sock", "Valkey"),
        ("valkey-aof-rewrite unixsocket:valkey.sock", "Valkey's rewrite"),
        ("/v/bin/python -P -m taskgate gateway", "gateway"),
        ("/v/bin/python -P -m taskgate worker", "supervisor"),
        ("/v/bin/python -I -S /x/workers/guard.py 13 120", "guard"),
        ('/v/bin/python -P -m workers.child {"spec":{"kind":"sync"', "sync child"),
        ('/v/bin/python -P -m workers.child {"spec":{"kind":"async"', "async child"),
        ("/v/bin/python -m locust -f loadtest/locustfile.py", "users (locust)"),
        ("", None),
    ],
)
def test_processes_are_called_by_what_they_do(command: str, role: str | None) -> None:
    assert samples.role(command) == role
    assert samples.numbered("child", ["child", "child 2"]) == "child 3"


async def test_memory_and_cpu_of_each_process_are_sampled_while_it_runs(tmp_path: Path) -> None:
    """Of a process that is busy, beside no service at all."""
    busy = machine.Group(
        [sys.executable, "-c", "while True: pass", "locust"], environ=dict(os.environ), log=tmp_path / "log"
    )
    try:
        with samples.Sampler("http://127.0.0.1:1", "", [busy]) as sampler:

            async def cores() -> list[float]:
                return [sample.cores.get("users (locust)", 0.0) for sample in sampler.samples]

            await eventually(cores, any, within_s=60)
    finally:
        busy.stop()
    rows = sampler.rows()
    assert max(row["rss_bytes"].get("users (locust)", 0) for row in rows) > 1_000_000
    assert {row["waiting"] for row in rows} == {None}


def _run(seconds: int) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    clock = Clock()
    journal = Journal(clock)
    sampled: list[dict[str, object]] = []
    for n in range(seconds):
        journal.users(n)
        journal.answered("submit", 202, n)
        journal.answered("submit", 429, 1)
        journal.event(clock.now_s * 1000 - n)
        rss = {"gateway": 50 * 2**20, "<child>": n * 2**20}
        look = samples.Sample(clock.now_s, waiting=n, running=None, rss_bytes=rss, cores={"gateway": 0.5})
        sampled.append(vars(look))
        clock.now_s += 1
    return journal.rows(), sampled


def test_the_charts_are_one_page_without_script_that_shows_every_series() -> None:
    rows, sampled = _run(20)
    page = charts.page("A <test>", ["17 accepted", "broken: 1 × something"], charts.of_run(rows, sampled))
    assert "<script" not in page
    assert "<h1>A &lt;test&gt;</h1>" in page
    assert '<p class="broken">broken: 1 × something</p>' in page
    pictures = [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page)]
    legends = {str(text.text) for picture in pictures for text in picture.iter("text")}
    assert {
        "users, at most 19",
        "tasks accepted, at most 1",
        "202, p99, at most 19 ms",
        "event age, p99, at most 19 ms",
        "429, at most 1",
        "waiting, at most 19",
        "running, nothing",
        "gateway, at most 50 MiB",
        "<child>, at most 19 MiB",
        "gateway, at most 0.50",
    } <= legends
    assert page.count("L") > 10 * 19, "each series is a line through all seconds"


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    chart = charts.Chart("x", {"line": [(0, 1), (1, 1), (2, 1), (60, 1), (61, 1)]})
    [path] = re.findall(r'<path d="([^"]+)" fill="none"', charts.svg(chart, 61))
    assert (path.count("M"), path.count("L")) == (2, 3)


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (0.3, 0.4), (1, 1), (1.1, 2), (7, 8), (99, 100), (101, 200), (833, 1000)]
)
def test_an_axis_ends_at_a_round_number_that_nothing_passes(most: float, top: float) -> None:
    assert charts.nice_top(most) == pytest.approx(top)

"""The benchmark harness itself: that it measures what it says, and notices what must not happen."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from loadtest import budgets, client, curves, drawing, machine, marks, open_loop, services
from loadtest.measures import Run
from loadtest.peers import commands, environment
from loadtest.valkey import Durability, serving


@pytest.fixture
def bare_url() -> Iterator[str]:
    """The application that does nothing, on a real uvicorn."""
    with serving(Durability.MEMORY) as valkey, services.bare().running(valkey) as running:
        yield f"{running.url}/tasks"
    assert running.app.cpu_s() == 0, "something of it is left"


def test_the_generator_sends_as_many_requests_as_it_was_told_and_counts_every_answer(bare_url: str) -> None:
    body = '{"n":{n}}'
    posts = client.run(client.Plan(url=bare_url, method="POST", body=body, count=500, connections=8, seconds=60))
    gets = client.run(client.Plan(url=bare_url, count=500, seconds=60))
    in_time = client.run(client.Plan(url=bare_url, seconds=0.3))
    assert posts["statuses"] == {"202": 500}
    assert posts["answered"] == 500
    assert gets["statuses"] == {"200": 500}
    assert 0 < float(str(gets["p50_ms"])) <= float(str(gets["p99_ms"]))
    assert set(in_time["statuses"]) <= {"200"}  # type: ignore[call-overload]


@pytest.fixture
def stalling_url() -> Iterator[str]:
    """A server for one connection that answers at once, but for one answer that takes 0.3 s."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                for number in range(1_000_000):
                    if not connection.recv(1 << 16):
                        return
                    if number == 10:
                        time.sleep(0.3)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        server = threading.Thread(target=serve)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.join(10)


def test_in_an_open_loop_whoever_was_due_during_a_stall_has_waited_for_it(stalling_url: str) -> None:
    report = open_loop.run(client.Plan(url=stalling_url, connections=1, seconds=0.6), rate=200)
    assert report["answered"] == 120
    assert float(str(report["p90_ms"])) > 100, "in a closed loop one answer would be late"


def test_requests_of_an_open_loop_are_due_at_its_rate_and_no_longer_than_asked() -> None:
    schedule = open_loop.Schedule(rate=10, seconds=1, started=100.0)
    assert [schedule.behind(n, 100.25) for n in (0, 2, 3)] == [True, True, False]
    assert [schedule.behind(n, 200.0) for n in (9, 10)] == [True, False]


def test_the_picture_has_a_line_for_each_service(tmp_path: Path) -> None:
    rates = (("taskgate", "fsync", 5000.0), ("saq", "memory", 1000.0), ("background", "memory", 2000.0))
    runs = [
        Run(f"curve-{share:.2f}", service, durability, {"rps": rate * share, "p99_ms": 1 + 9 * share})
        for service, durability, rate in rates
        for share in curves.SHARES
    ]
    lines = curves.lines([*runs, Run("curve-peak", "taskgate", "fsync", {"rps": 5000.0})])
    assert {name: len(line) for name, line in lines.items()} == {
        "taskgate, every 202 synced to disk": len(curves.SHARES),
        "saq, in memory": len(curves.SHARES),
        "BackgroundTasks, keeps nothing": len(curves.SHARES),
    }
    drawing.draw(tmp_path / "curves.png", lines, title="Rate against latency")
    with Image.open(tmp_path / "curves.png") as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or []}
    assert {(0xC0, 0x39, 0x2B), (0x24, 0x71, 0xA3), (0x1E, 0x84, 0x49)} <= colours


def test_every_request_carries_a_number_of_its_own_and_its_true_length() -> None:
    sent = list(
        client.Plan(url="http://h:1/tasks", method="POST", body='{"n":{n}}', count=3, first=2_000_000_000).requests()
    )
    bodies = [request.partition(b"\r\n\r\n")[2] for request in sent]
    assert [json.loads(body)["n"] for body in bodies] == [2_000_000_000, 2_000_000_001, 2_000_000_002]
    assert all(
        f"Content-Length: {len(body)}\r\n".encode() in request for request, body in zip(sent, bodies, strict=True)
    )


def test_an_answer_is_whole_only_with_its_last_byte() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    assert [client.is_whole(answer[:size]) for size in (10, len(answer) - 1, len(answer))] == [False, False, True]


def test_marks_survive_a_torn_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "marks"
    monkeypatch.setenv(marks.VARIABLE, str(path))
    marks.leave(7)
    marks.leave(8)
    with path.open("ab") as file:
        file.write(b"torn")
    assert [mark.n for mark in marks.read(path)] == [7, 8]
    assert marks.count(path) == 2


def _work(service: str, per_s: float, *, foreign: float = 0.0, number: int = 1, done: int = 10, jobs: int = 10) -> Run:
    figures = {"per_s": per_s, "waiting": 10.0, "done": float(done), "jobs": float(jobs)}
    return Run("work", service, "memory", figures, foreign, number)


def test_a_figure_is_the_median_of_the_quiet_runs_beside_the_best_peer() -> None:
    ours = [_work("taskgate", rate) for rate in (900, 1000, 1100)]
    ours.append(_work("taskgate", 1, foreign=0.5))
    peers = [_work("saq", 100), _work("dramatiq", 240)]
    [row] = budgets.rows(budgets.Figures([*ours, *peers]))
    assert (row.figure, row.best_peer, row.holds, row.noisy) == ("1,000", "4.2 × dramatiq (240)", True, False)
    [row] = budgets.rows(budgets.Figures([*ours, _work("saq", 251, foreign=0.5)]))
    assert (row.holds, row.noisy) == (False, True)


def test_a_ratio_is_taken_within_each_round_since_machines_change_their_speed() -> None:
    """The machine halves its speed each round; the peer's last round is missing."""
    ours = [_work("taskgate", rate, number=number) for number, rate in ((1, 4000), (2, 2000), (3, 1000))]
    peers = [_work("saq", rate, number=number) for number, rate in ((1, 1000), (2, 500))]
    [row] = budgets.rows(budgets.Figures([*ours, *peers]))
    assert (row.figure, row.best_peer, row.holds) == ("2,000", "4.0 × saq (750)", True)


@pytest.mark.parametrize(("done", "jobs"), [(9, 9), (11, 10), (10, 9)], ids=["lost", "run twice", "both"])
def test_lost_and_doubled_jobs_are_told(done: int, jobs: int) -> None:
    right = [_work("taskgate", 1), _work("taskgate", 1)]
    assert budgets.problems(right) == []
    assert len(budgets.problems([*right, _work("taskgate", 1, done=done, jobs=jobs)])) == 1


def test_the_peers_environment_is_named_after_what_is_in_it() -> None:
    for file in Path(environment.__file__).parent.glob("constraints*.txt"):
        pinned = file.read_text().splitlines()
        assert all("==" in line and "/" not in line for line in pinned), "names and versions only, no hosts"


def test_peers_are_started_by_the_modules_named_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ensure", lambda name="": Path("/peers") / (name or "common") / "python")
    found = {service.name: service for service in commands.peers(commands.NAMES)}
    files = {path.stem.removeprefix("on_") for path in Path(commands.__file__).parent.glob("on_*.py")}
    assert tuple(found) == commands.NAMES
    assert files == set(commands.NAMES) > set(commands.USUAL)
    for name, service in found.items():
        assert f"loadtest.peers.on_{name}:app" in service.app
        assert all(str(argv[0]).endswith("python") for argv in (service.app, service.worker) if argv)
    assert {name for name, service in found.items() if "arq" in Path(service.app[0]).parts} == {"arq"}


@pytest.mark.parametrize(("single", "workers"), [(False, 1), (True, 2)])
def test_a_worker_command_of_one_process_is_started_for_each(single: bool, workers: int) -> None:
    app = services.bare().app
    service = services.Service(
        "peer", app, [sys.executable, "-c", "import time; time.sleep(600)"], keeps=False, single=single
    )
    with serving(Durability.MEMORY) as valkey, service.running(valkey, processes=2) as running:
        assert len(running.workers) == workers


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_short_benchmark_of_taskgate_alone_finds_nothing_wrong(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "loadtest.bench", "--short", "--no-peers", "--results", str(tmp_path)]
    done = subprocess.run(argv, cwd=machine.ROOT, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [file] = tmp_path.glob("*.json")
    assert len(list(tmp_path.glob("*.png"))) == 1
    document = json.loads(file.read_text())
    assert document["errors"] == []
    measured = {run["what"] for run in document["runs"] if run["service"] == "taskgate"}
    wanted = {
        "submit",
        "work",
        "status",
        "latency",
        "memory",
        "progress",
        "idle",
        "streams",
        "recovery",
        "flat",
        "children",
        "anatomy-submit",
        "anatomy-status",
        "curve-0.50",
        "obeying",
        "flood",
        "store-64",
        "store-128",
    }
    assert wanted <= measured

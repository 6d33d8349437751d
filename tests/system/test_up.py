"""`taskgate up` as a user meets it: real processes, signals, terminals."""

import concurrent.futures
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.system.running import HANDLERS, Running, until
from tests.system.terminal import Terminal

GRACE_S = 8
FINAL = ("succeeded", "failed", "canceled", "expired")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.clean_up()


def nothing_left(up: Running, *, besides: int | None = None) -> None:
    until(up.left, lambda left: not left.keys() - {besides})


def test_it_says_where_it_is_runs_a_task_and_stops_with_nothing_left(up: Running) -> None:
    up.start()
    task = up.submit(run_s=0)
    assert up.wait_for(task, *FINAL)["status"] == "succeeded"
    said = up.said()
    assert "curl http://127.0.0.1:" in said
    assert "/docs" in said
    assert str(up.folder / "taskgate-data") in said

    assert up.stop() == 0

    nothing_left(up)


def test_a_second_up_on_the_same_data_is_refused_in_one_line(up: Running) -> None:
    up.start()
    first = up.process
    assert first is not None
    output, up.output = up.output, up.folder / "second.log"

    assert up.launch().wait(60) == 1

    assert up.said().count("\n") == 1
    assert f"in use by another `taskgate up` (pid {first.pid})" in up.said()
    assert up.http.get("/livez").status_code == 200
    up.output, up.process = output, first
    assert up.stop() == 0


@pytest.mark.parametrize("name", ["TASKGATE_PORT", "TASKGATE_WORKER_HEALTH_PORT"])
def test_a_port_that_is_taken_is_said_in_one_line(up: Running, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert up.launch(**{name: str(port)}).wait(60) == 2
    assert up.said().count("\n") == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in up.said()
    assert f"choose another with {name}" in up.said()
    nothing_left(up)


def test_handlers_that_cannot_be_loaded_are_shown_and_nothing_stays(up: Running) -> None:
    (up.folder / "myjobs.py").write_text("import no_such_module\n")
    assert up.launch().wait(60) == 1
    assert "line 1, in <module>\n    import no_such_module" in up.said()
    assert "myjobs cannot be loaded" in up.said()
    nothing_left(up)


@pytest.mark.full
def test_an_app_folder_where_it_is_started_does_not_hide_ours(up: Running) -> None:
    (up.folder / "app").mkdir()
    (up.folder / "app" / "__init__.py").write_text("raise RuntimeError('the wrong app')\n")
    up.start()
    assert up.stop() == 0


class Submitter(threading.Thread):
    """Submits until refused or cut off, and keeps the id of every 202, and of what may have been accepted."""

    def __init__(self, up: Running, run_s: float) -> None:
        super().__init__()
        self.accepted: list[str] = []
        self.unsure: list[str] = []
        self._up = up
        self._run_s = run_s

    def run(self) -> None:
        body = {"type": "step", "payload": {"run_s": self._run_s}}
        with httpx.Client(base_url=self._up.http.base_url, trust_env=False, timeout=30) as http:
            try:
                while True:
                    answer = http.post("/tasks", json=body)
                    if answer.status_code == 202:
                        self.accepted.append(answer.json()["id"])
                    elif answer.json()["type"] == "/problems/dependency-unavailable":  # for 2 s its disk was busy
                        self.unsure += [answer.json()["task_id"]] if "task_id" in answer.json() else []
                    else:
                        return
            except httpx.HTTPError:
                return  # no answer, no promise


def follow(up: Running, task: str) -> str:
    """How the stream of a task ends: `clean`, or the error."""
    try:
        with httpx.stream(
            "GET",
            f"{up.http.base_url}/tasks/{task}/events",
            trust_env=False,
            timeout=60,
            headers={"Accept": "text/event-stream"},
        ) as stream:
            for _ in stream.iter_lines():
                continue
    except httpx.HTTPError as error:
        return repr(error)
    return "clean"


def test_sigterm_under_load_loses_nothing_that_was_accepted(up: Running) -> None:
    """Tasks run, streams are open and submissions come in: what a 202 promised is kept by the next start."""
    up.start()
    long = [up.submit(run_s=60), up.submit(run_s=0.5)]
    for task in long:
        up.started(task)
    submitters = [Submitter(up, 0.01) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        streams = [pool.submit(follow, up, long[0]) for _ in range(10)]
        for submitter in submitters:
            submitter.start()
        until(lambda: min(len(submitter.accepted) for submitter in submitters), lambda count: count >= 20)

        started = time.monotonic()
        assert up.stop() == 0
        assert time.monotonic() - started < GRACE_S

        assert {stream.result() for stream in streams} == {"clean"}
    for submitter in submitters:
        submitter.join()
    nothing_left(up)

    up.hasten()
    up.start()
    accepted = long + [task for submitter in submitters for task in submitter.accepted]
    for task in accepted:
        ended = up.wait_for(task, *FINAL)
        assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
    ends = [task for word, task, *_ in up.runs() if word == "end"]
    assert len(ends) == len(set(ends))
    assert set(ends) - {task for submitter in submitters for task in submitter.unsure} == set(accepted)
    assert up.stop() == 0


@pytest.mark.full
def test_a_second_signal_hands_back_at_once(up: Running) -> None:
    up.start(TASKGATE_GRACE_S="60")
    task = up.submit(run_s=60)
    up.started(task)
    assert up.process is not None
    up.process.send_signal(signal.SIGTERM)
    until(up.said, lambda said: "stopping" in said)

    started = time.monotonic()
    assert up.stop() == 0
    assert time.monotonic() - started < 50, "before its grace of 60 s"

    up.start()
    assert up.wait_for(task, "running")["attempt"] == 1
    nothing_doubled(up)


def nothing_doubled(up: Running) -> None:
    """No task ran twice at the same time, and none ended twice."""
    ends = [task for word, task, *_ in up.runs() if word == "end"]
    assert len(ends) == len(set(ends))


def test_sigkill_leaves_no_process_and_valkey_stops_last(up: Running) -> None:
    up.start()
    task = up.submit(run_s=60)
    up.started(task)

    assert up.stop(signal.SIGKILL) == -signal.SIGKILL
    nothing_left(up)

    up.hasten()
    up.start()
    # Handed back, and so uncounted: its supervisor still had a Valkey to tell.
    assert up.wait_for(task, *FINAL)["attempt"] == 1
    assert up.stop() == 0


def test_sigkill_of_up_and_its_guard_leaves_no_process(up: Running) -> None:
    up.start()
    os.kill(up.pid_of("up/guard.py"), signal.SIGKILL)
    up.stop(signal.SIGKILL)
    nothing_left(up)


@pytest.mark.full
@pytest.mark.parametrize(
    "victims",
    [
        ("taskgate gateway", "taskgate worker", "valkey-server unixsocket"),
        pytest.param(("up/guard.py",), marks=pytest.mark.full),
    ],
    ids=["services", "guard"],
)
def test_whatever_dies_is_back_and_the_service_is_whole(up: Running, victims: tuple[str, ...]) -> None:
    up.start()
    before = up.submit(run_s=0.01)
    up.wait_for(before, "succeeded")
    for victim in victims:
        kill_and_wait_for_another(up, victim)
        until(lambda: codes(up, "/readyz", f"/tasks/{before}"), lambda found: found == [200, 200])
        assert up.task(before)["status"] == "succeeded"
        assert up.wait_for(up.submit(run_s=0.01), *FINAL)["status"] == "succeeded"
    assert up.stop() == 0
    nothing_left(up)


def kill_and_wait_for_another(up: Running, victim: str) -> None:
    pid, server = up.pid_of(victim), up.pid_of("valkey-server unixsocket")
    os.kill(pid, signal.SIGKILL)
    gone = {pid, server} if "guard" in victim else {pid}  # a guard takes its server along
    until(up.left, lambda left: not gone & left.keys())
    until(lambda: [one for one, command in up.left().items() if victim in command], bool)


def codes(up: Running, *paths: str) -> list[int]:
    """Status codes, as the store is now; none if the gateway is away."""
    try:
        return [up.http.get(path, headers={"Cache-Control": "no-cache"}).status_code for path in paths]
    except httpx.HTTPError:
        return []


def test_ctrl_c_on_a_terminal_stops_everything(up: Running) -> None:
    with Terminal(up, TASKGATE_GRACE_S="60") as terminal:
        terminal.run_up()
        up.started(up.submit(run_s=0.5))
        terminal.press("c")
        assert terminal.exit_code() == 0
        nothing_left(up, besides=terminal.shell_pid)
    assert [word for word, *_ in up.runs()] == ["start", "end"]


def test_ctrl_z_past_the_lease_and_fg_double_nothing(up: Running) -> None:
    """The terminal stops `up` alone: gateway, workers and Valkey go on."""
    with Terminal(up) as terminal:
        terminal.run_up()
        running = up.submit(run_s=2)
        up.started(running)
        terminal.press("z")
        terminal.until_said("Stopped")
        meanwhile = up.submit(run_s=0.01)
        assert up.wait_for(meanwhile, *FINAL)["status"] == "succeeded"
        assert up.wait_for(running, *FINAL)["attempt"] == 1

        terminal.type("fg\n")
        assert up.wait_for(up.submit(run_s=0.01), *FINAL)["attempt"] == 1
        terminal.press("c")
        assert terminal.exit_code() == 0
        nothing_left(up, besides=terminal.shell_pid)
    assert len([word for word, *_ in up.runs() if word == "start"]) == 3


@pytest.mark.full
def test_a_terminal_that_is_closed_takes_everything_with_it_in_order(up: Running) -> None:
    """Log lines have nowhere to go then: that must not keep anybody from handing back."""
    with Terminal(up) as terminal:
        terminal.run_up()
        task = up.submit(run_s=60)
        up.started(task)
    nothing_left(up)

    up.hasten()
    up.start()
    assert up.wait_for(task, *FINAL)["attempt"] == 1
    assert up.stop() == 0


def edit(module: Path, text: str) -> None:
    """At once: a module that is read while it is half written has no handlers, or does not load."""
    new = module.with_suffix(".new")
    new.write_text(text)
    new.replace(module)


def test_own_handlers_from_a_folder_of_their_own_with_reload(up: Running) -> None:
    """The README's walk: write, start, submit, edit, break, mend."""
    module = up.folder / "myjobs.py"
    up.start("--reload")

    def result() -> object:
        task = up.submit(run_s=0)
        assert up.wait_for(task, *FINAL)["status"] == "succeeded"
        return up.http.get(f"/tasks/{task}/result").json()

    assert "first version" in str(result())
    edit(module, module.read_text().replace("first version", "second version"))
    until(result, lambda value: "second version" in str(value))
    assert "myjobs.py changed: starting the workers anew" in up.said()

    edit(module, "import no_such_module\n")
    until(up.said, lambda said: "the workers stay as they are" in said)
    assert "ModuleNotFoundError: No module named 'no_such_module'" in up.said()
    assert "second version" in str(result())

    edit(module, HANDLERS.replace("first version", "third version"))
    until(result, lambda value: "third version" in str(value))
    assert up.stop() == 0
    nothing_left(up)


@pytest.mark.full
def test_with_reload_a_broken_module_may_be_mended_after_the_start(up: Running) -> None:
    module = up.folder / "myjobs.py"
    good = module.read_text()
    module.write_text("import no_such_module\n")
    process = up.launch("--reload")
    until(up.said, lambda said: "no workers yet" in said or process.poll() is not None)

    edit(module, good)

    until(up.said, lambda said: "Taskgate is ready" in said)
    up.connect()
    assert up.wait_for(up.submit(run_s=0), *FINAL)["status"] == "succeeded"
    assert up.stop() == 0


@pytest.mark.full
def test_a_redis_of_ones_own_needs_no_valkey_of_ours(up: Running, redis_url: str) -> None:
    up.start(TASKGATE_REDIS_URL=redis_url)
    assert up.wait_for(up.submit(run_s=0), *FINAL)["status"] == "succeeded"
    assert not [command for command in up.left().values() if "valkey-server" in command]
    assert not (up.folder / "taskgate-data").exists()
    assert up.stop() == 0
    nothing_left(up)

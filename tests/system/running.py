"""A real `taskgate up` for tests: in a folder of its own, spoken to over HTTP, and searched for what it leaves."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests.processes import whole_lines

T = TypeVar("T")

HANDLERS = """
import time

from pydantic import BaseModel

from taskgate import Attempt, handler


class Step(BaseModel):
    run_s: float


def note(word: str, attempt: Attempt) -> None:
    with open("runs.log", "a") as runs:
        runs.write(f"{word} {attempt.id} {attempt.number} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\\n")


@handler("step")
def step(payload: Step, attempt: Attempt) -> str:
    note("start", attempt)
    until = time.monotonic() + payload.run_s
    while time.monotonic() < until:
        time.sleep(0.01)
        attempt.progress(round(payload.run_s - (until - time.monotonic()), 2), payload.run_s, unit="s")
    note("end", attempt)
    return "first version"
"""

SETTINGS = {
    "TASKGATE_HANDLERS": "myjobs",
    "TASKGATE_PORT": "0",
    "TASKGATE_WORKER_PROCESSES": "2",
    "TASKGATE_ASYNC_PROCESSES": "0",
    "TASKGATE_LEASE_S": "0.6",
    "TASKGATE_GRACE_S": "8",
    "TASKGATE_LOG_FORMAT": "json",
}


def until(read: Callable[[], T], wanted: Callable[[T], object], *, within_s: float = 60) -> T:
    """Like `eventually`, for tests that have no event loop."""
    deadline = time.monotonic() + within_s
    while not wanted(value := read()):
        if time.monotonic() > deadline:
            pytest.fail(f"still {value!r} after {within_s} s")
        time.sleep(0.02)
    return value


def _redis_answers(answer: httpx.Response) -> bool:
    """It may be silent for 2 s while its disk is busy."""
    return answer.status_code != 503


def environment(**settings: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TASKGATE_")}
    return clean | SETTINGS | settings


class Running:
    """`taskgate up` in `folder`, where `myjobs.py` has its handlers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._client: httpx.Client | None = None
        (folder / "myjobs.py").write_text(HANDLERS)

    def hasten(self) -> None:
        """From the next start on, every task is short."""
        (self.folder / "myjobs.py").write_text(HANDLERS.replace("payload.run_s", "0.01"))

    def launch(self, *options: str, **settings: str) -> subprocess.Popen[bytes]:
        self.output.write_bytes(b"")
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "taskgate", "up", *options],
                cwd=self.folder,
                env=environment(**settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self.process

    def start(self, *options: str, **settings: str) -> None:
        """Launch, and wait until it says where it is."""
        process = self.launch(*options, **settings)
        until(self.said, lambda said: "Taskgate is ready" in said or process.poll() is not None)
        assert process.poll() is None, self.said()
        self.connect()

    def connect(self) -> None:
        found = re.search(r"ready at (http://\S+)", self.said())
        assert found, self.said()
        self.disconnect()
        self._client = httpx.Client(base_url=found[1], trust_env=False, timeout=30)

    @property
    def http(self) -> httpx.Client:
        assert self._client is not None
        return self._client

    def disconnect(self) -> None:
        if self._client:
            self._client.close()
            self._client = None

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def stop(self, sig: signal.Signals = signal.SIGTERM, *, within_s: float = 60) -> int:
        assert self.process is not None
        self.process.send_signal(sig)
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {within_s} s: {self.left()}\n{self.said()}")

    def submit(self, task_type: str = "step", **payload: Any) -> str:
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        body = {"type": task_type, "payload": payload}
        answer = until(lambda: self.http.post("/tasks", json=body, headers=headers), _redis_answers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def task(self, task_id: str) -> dict[str, Any]:
        headers = {"Cache-Control": "no-cache"}
        answer = until(lambda: self.http.get(f"/tasks/{task_id}", headers=headers), _redis_answers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def wait_for(self, task_id: str, *statuses: str) -> dict[str, Any]:
        return until(lambda: self.task(task_id), lambda task: task["status"] in statuses)

    def started(self, task_id: str) -> None:
        """Wait until its handler runs: a task that is claimed may still be on its way to a child."""
        until(self.runs, lambda runs: [one for one in runs if one[:2] == ("start", task_id)])

    def runs(self) -> list[tuple[str, str, int, int]]:
        """(start or end, task id, attempt, boot-time ns) as the handlers wrote them."""
        path = self.folder / "runs.log"
        lines = whole_lines(path) if path.exists() else []
        return [(word, task, int(number), int(at)) for word, task, number, at in map(str.split, lines)]

    def left(self) -> dict[int, str]:
        """Every living process that was started, however indirectly, in the folder."""
        return {pid: command for pid, (cwd, command) in processes().items() if cwd.is_relative_to(self.folder)}

    def pid_of(self, words: str) -> int:
        """The one process whose command line has `words`, the first if it has children of the same name."""
        return min(pid for pid, command in self.left().items() if words in command)

    def clean_up(self) -> None:
        self.disconnect()
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.process:
            self.process.wait()


def processes() -> Mapping[int, tuple[Path, str]]:
    """Folder and command line of each process that is not a zombie."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if "\nState:\tZ" in (place / "status").read_text():
                continue
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found[int(place.name)] = ((place / "cwd").readlink(), command)
        except OSError:
            continue
    return found

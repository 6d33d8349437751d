"""How each service is started for a measurement: the same front, the same jobs, the same server behind them."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadtest import client, machine, marks
from loadtest.valkey import Valkey
from taskgate.listening import free_port

TEXT = "x" * 200
NOOP = f'{{"type":"noop","payload":{{"n":{client.NUMBER},"text":"{TEXT}"}}}}'
_UVICORN = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]


@dataclass
class Running:
    """A service that accepts jobs; its workers stand still until `work`."""

    name: str
    url: str
    app: machine.Group
    marks: Path
    workers: list[machine.Group] = field(default_factory=list)

    def work(self) -> None:
        """Let the workers take jobs."""
        for group in self.workers:
            group.signal(signal.SIGCONT)

    def rest(self) -> None:
        """Stop the workers where they are, so that only the front uses the machine."""
        for group in self.workers:
            group.signal(signal.SIGSTOP)

    @property
    def groups(self) -> list[machine.Group]:
        return [self.app, *self.workers]

    def load(self, path: str, *, module: str = "loadtest.client", **plan: Any) -> dict[str, Any]:
        """Run a generator in a process of its own; its report."""
        options = [part for name, value in plan.items() for part in (f"--{name}", str(value))]
        argv = [sys.executable, "-m", module, self.url + path, *options]
        return run_json(argv, environ=machine.clean_environ())

    def submit(self, body: str, connection: http.client.HTTPConnection | None = None) -> str:
        """One job; its id."""
        status, answer = self.request("POST", "/tasks", body, connection)
        if status != 202:
            raise OSError(f"{self.name}: POST answered {status}: {answer!r}")
        return str(json.loads(answer)["id"])

    def request(
        self,
        method: str,
        path: str,
        body: str = "",
        connection: http.client.HTTPConnection | None = None,
        *,
        fresh: bool = False,
    ) -> tuple[int, bytes]:
        """One request, over `connection` or one of its own; `fresh`: past every cache."""
        used = connection or self.connect()
        headers = {"Content-Type": "application/json"} | ({"Cache-Control": "no-cache"} if fresh else {})
        try:
            used.request(method, path, body or None, headers)
            answer = used.getresponse()
            return answer.status, answer.read()
        finally:
            if connection is None:
                used.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)


@dataclass(frozen=True)
class Service:
    """What differs between the services: command lines. `{port}` and `{processes}` are filled in."""

    name: str
    app: Sequence[str | Path]
    worker: Sequence[str | Path] = ()
    environ: dict[str, str] = field(default_factory=dict)
    keeps: bool = True
    """Whether jobs are in Redis: what is kept can be drained."""
    publishes: bool = False
    """Whether the front refuses jobs that no worker has announced: workers must have been there first."""
    single: bool = False
    """Whether a worker command is one process, so that it is started once for each of them."""

    @contextlib.contextmanager
    def running(self, valkey: Valkey, *, processes: int = 2, supervisors: int = 1) -> Iterator[Running]:
        """Started on a free port and ready; workers rest."""
        with tempfile.TemporaryDirectory(prefix=f"loadtest-{self.name}-") as folder, _marks_file() as file:
            port = free_port()
            environ = machine.clean_environ(
                **{"BENCH_REDIS_URL": valkey.url, marks.VARIABLE: str(file)},
                **{key: _filled(value, port, processes, valkey) for key, value in self.environ.items()},
            )

            def start(argv: Sequence[str | Path], name: str) -> machine.Group:
                filled = [_filled(str(part), port, processes, valkey) for part in argv]
                return machine.Group(filled, environ=environ, log=Path(folder) / f"{name}.log")

            app = start(self.app, "app")
            running = Running(self.name, f"http://127.0.0.1:{port}", app, file)
            try:
                if self.worker:
                    commands = supervisors * processes if self.single else supervisors
                    running.workers += [start(self.worker, f"worker-{n}") for n in range(commands)]
                if not self.publishes:
                    running.rest()
                _wait(running)
                running.rest()
                yield running
            finally:
                for group in [*running.workers, app]:
                    group.stop()


def taskgate(*, lease_s: float = 60, retention_s: int = 86_400) -> Service:
    """`lease_s`: longer than its supervisor rests in a measurement."""
    settings = {
        "REDIS_URL": "{redis}",
        "PORT": "{port}",
        "HANDLERS": "loadtest.handlers",
        "WORKER_PROCESSES": "{processes}",
        "LEASE_S": str(lease_s),
        "RETENTION_S": str(retention_s),
        "QUEUE_LIMIT_TASKS": "10000000",
        "QUEUE_LIMIT_BYTES": str(1 << 40),
    }
    return Service(
        "taskgate",
        [sys.executable, "-m", "taskgate", "gateway"],
        [sys.executable, "-m", "taskgate", "worker"],
        environ={f"TASKGATE_{name}": value for name, value in settings.items()},
        publishes=True,
    )


def bare() -> Service:
    return Service("bare", [sys.executable, *uvicorn("loadtest.bare:app"), "--lifespan", "off"], keeps=False)


def run_json(argv: Sequence[str | Path], *, environ: dict[str, str]) -> dict[str, Any]:
    """Run a command that prints one JSON object.

    Raises:
        OSError: it failed; the message is the end of what it said.
    """
    done = subprocess.run(
        list(map(str, argv)), cwd=machine.ROOT, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"{argv[2]} failed: {done.stderr[-800:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def uvicorn(app: str) -> list[str]:
    """Arguments of a Python that serves it on `{port}`."""
    return ["-m", "uvicorn", app, "--host", "127.0.0.1", "--port", "{port}", *_UVICORN]


def _filled(text: str, port: int, processes: int, valkey: Valkey) -> str:
    return text.format(port=port, processes=processes, redis=valkey.url)


@contextlib.contextmanager
def _marks_file() -> Iterator[Path]:
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="loadtest-marks-", dir=folder) as path:
        yield Path(path) / "marks"


def _wait(running: Running, *, within_s: float = 30) -> None:
    """Until the front says it is ready, which for Taskgate includes a supervisor."""
    deadline = time.monotonic() + within_s
    seen: object = None
    while time.monotonic() < deadline:
        for group in running.groups:
            if group.exit_code is not None:
                raise OSError(f"{running.name} ended: {group.log.read_text()[-800:]}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, seen = running.request("GET", "/readyz")
            if status in (200, 202):
                return
        time.sleep(0.05)
    raise OSError(f"{running.name} is not ready after {within_s} s: {seen!r} {running.app.log.read_text()[-500:]}")

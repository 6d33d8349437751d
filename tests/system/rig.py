"""A service of single processes for tests: own Valkey, gateways and supervisors to be stopped, killed and frozen."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from redis.asyncio import Redis

from taskgate.contract.models import WorkerInfo
from taskgate.contract.store import Store
from tests.conftest import Server, eventually
from tests.processes import free_port, state_of, whole_lines

FINAL = {"succeeded", "failed", "canceled", "expired"}
ROOT = Path(__file__).parents[2]


class Run(NamedTuple):
    """One attempt as its handler stamped it; times in ns of the boot clock, `end` None when it never got there."""

    task_id: str
    attempt: int
    pid: int
    start: int
    end: int | None


@dataclass
class Rig:
    server: Server
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.stamps = self.folder / "stamps"
        self.stamps.touch()
        self.redis = Redis.from_url(self.server.url, socket_timeout=60)  # nothing here is lost for a pause
        self.store = Store(self.redis)
        self.http = httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=30)

    def environment(self, **more: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TASKGATE_")}
        return clean | {
            "PYTHONPATH": str(ROOT),
            "STAMPS": str(self.stamps),
            "TASKGATE_REDIS_URL": self.server.url,
            "TASKGATE_PORT": str(self.port),
            "TASKGATE_HANDLERS": "tests.system.jobs",
            "TASKGATE_LOG_FORMAT": "json",
            "TASKGATE_WORKER_PROCESSES": "2",
            **self.settings,
            **more,
        }

    def spawn(self, command: str, **settings: str) -> subprocess.Popen[bytes]:
        """Start `taskgate <command>`; its log is <command>.log in the folder."""
        with (self.folder / f"{command}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "taskgate", command],
                env=self.environment(**settings),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    async def worker(self, **settings: str) -> subprocess.Popen[bytes]:
        """Start a supervisor and wait until it has beaten with its types known."""
        process = self.spawn("worker", **settings)

        async def workers() -> list[WorkerInfo]:
            assert process.poll() is None, (self.folder / "worker.log").read_text()[-2000:]
            return await self.store.workers()

        await eventually(
            workers,
            lambda found: any(w.pid == process.pid and w.state == "ready" and w.types for w in found),
            within_s=120,
        )
        return process

    async def gateway(self) -> subprocess.Popen[bytes]:
        process = self.spawn("gateway")
        await until_answered(self.http, "/readyz")
        return process

    async def another_gateway(self, **settings: str) -> int:
        """Beside the first; its port."""
        port = free_port()
        self.spawn("gateway", TASKGATE_PORT=str(port), **settings)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
            await until_answered(http, "/livez")
        return port

    async def submit(self, task_type: str, payload: Any, **fields: Any) -> str:
        """Submit until it is accepted; the id."""
        while True:
            answer = await self.http.post("/tasks", json={"type": task_type, "payload": payload, **fields})
            if answer.status_code == 202:
                return str(answer.json()["id"])
            # 503: Redis was silent for 2 s, as it is while its disk is busy.
            assert answer.status_code in (429, 503), answer.text
            await asyncio.sleep(float(answer.headers["retry-after"]))
            unsure = answer.json().get("task_id")
            if unsure and await self.store.read([unsure]) != [None]:
                return str(unsure)

    async def task(self, task_id: str) -> dict[str, Any]:
        answer = await eventually(
            lambda: self.http.get(f"/tasks/{task_id}", headers={"Cache-Control": "no-cache"}),
            lambda answer: answer.status_code != 503,  # Redis was silent for 2 s
            within_s=60,
        )
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def ended(self, task_id: str, *, within_s: float = 60) -> dict[str, Any]:
        return await eventually(lambda: self.task(task_id), lambda task: task["status"] in FINAL, within_s=within_s)

    async def running(self, task_id: str, *, within_s: float = 60) -> dict[str, Any]:
        return await eventually(lambda: self.task(task_id), lambda t: t["status"] == "running", within_s=within_s)

    def runs(self) -> list[Run]:
        """Every attempt whose handler started."""
        starts: dict[tuple[str, int, int], int] = {}
        ends: dict[tuple[str, int, int], int] = {}
        for line in whole_lines(self.stamps):
            kind, task_id, attempt, at, pid = line.split()
            (starts if kind == "start" else ends)[task_id, int(attempt), int(pid)] = int(at)
        return [
            Run(task_id, attempt, pid, at, ends.get((task_id, attempt, pid)))
            for (task_id, attempt, pid), at in starts.items()
        ]

    async def children(self) -> list[dict[str, Any]]:
        """Every child of every supervisor, as the last beats told."""
        return [dict(child) for worker in await self.store.workers() for child in worker.children]

    async def close(self) -> None:
        await self.http.aclose()
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            try:
                process.wait(25)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        await self.redis.aclose()


async def until_answered(http: httpx.AsyncClient, path: str) -> None:
    """With 200, by a process that may still be starting."""

    async def status() -> int:
        with contextlib.suppress(httpx.TransportError):
            return (await http.get(path)).status_code
        return 0

    await eventually(status, lambda code: code == 200, within_s=120)


@contextlib.asynccontextmanager
async def serving(server: Server, folder: Path, **settings: str) -> AsyncIterator[Rig]:
    """A supervisor and a gateway."""
    rig = Rig(server, folder, settings)
    try:
        await rig.worker()
        await rig.gateway()
        yield rig
    finally:
        await rig.close()


def children_of(pid: int) -> list[int]:
    """Pids of the direct children, any thread's."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it may be gone by now, or a thread of it
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def is_dead(pid: int, *, or_stopped: bool = False) -> bool:
    """Gone or a zombie."""
    return state_of(pid) in ("", "Z", *("T" if or_stopped else ""))


async def until_dead(pid: int, *, within_s: float = 30) -> None:
    async def dead() -> bool:
        return is_dead(pid)

    await eventually(dead, bool, within_s=within_s, every_s=0.001)


def descendants(pid: int) -> list[int]:
    found = children_of(pid)
    return found + [each for child in found for each in descendants(child)]


def task_children(supervisor: int) -> list[int]:
    """The supervisor's children that run handlers."""
    return [pid for pid in children_of(supervisor) if "workers.child" in command_of(pid)]


def overlaps(runs: list[Run], killed: dict[int, int]) -> list[tuple[Run, Run]]:
    """Pairs of runs of one task that overlap. A run without an end lasts until its process was killed.

    `killed`: pid -> boot clock in ns when it was certainly dead.
    """
    by_task: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_task[run.task_id].append(run)
    found = []
    for each in by_task.values():
        ordered = sorted(each, key=lambda run: run.start)
        for earlier, later in itertools.pairwise(ordered):
            end = earlier.end if earlier.end is not None else killed.get(earlier.pid, earlier.start)
            if later.start < end:
                found.append((earlier, later))
    return found

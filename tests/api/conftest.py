"""A gateway in this process on a real server, and a stand-in for the supervisor that speaks to the store alone."""

import asyncio
import sys
from pathlib import Path
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from app.api import build
from app.door import Door
from app.gateway import Gateway
from taskgate import settings as environment
from taskgate.contract import models
from taskgate.contract.connection import connect
from taskgate.contract.models import Claimed, Finish, Held, Report, TypeInfo, WorkerInfo
from taskgate.contract.store import Store
from tests.conftest import eventually

ROOT = Path(__file__).parents[2]
ECHO_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "times": {"type": "integer", "minimum": 1}, "more": {}},
    "required": ["text"],
    "additionalProperties": False,
}
ANY_SCHEMA: dict[str, Any] = {}


class Worker:
    """Claims, reports and finishes by hand, in the one partition of these tests."""

    def __init__(self, store: Store, worker_id: str = "host-1-00000000", lease_ms: int = 60_000) -> None:
        self.store = store
        self.info = WorkerInfo(
            id=worker_id,
            host="host",
            pid=1,
            started_ms=0,
            lease_ms=lease_ms,
            queues=["default"],
            types=["echo:v1", "any:v1"],
            state="ready",
            children=[{"pid": 2, "kind": "sync", "state": "idle", "tasks": []}],
            wanted_children=1,
            guard="ok",
        )
        self.reports = 0
        self.served = [models.Served("default", "echo", "sync"), models.Served("default", "any", "sync")]

    async def publish(self, **schemas: dict[str, Any]) -> None:
        schemas = schemas or {"echo": ECHO_SCHEMA, "any": ANY_SCHEMA}
        await self.store.announce(
            [
                TypeInfo(
                    type=name,
                    schema_hash="v1",
                    kind="sync",
                    queue="default",
                    schema=msgspec.Raw(msgspec.json.encode(schema)),
                    timeout_s=60,
                    max_attempts=3,
                )
                for name, schema in schemas.items()
            ]
        )

    async def beat(self, *held: Claimed) -> None:
        await self.store.beat(0, self.info, held=[Held(one.id, one.epoch) for one in held], served=self.served)

    async def claim(self, count: int = 1) -> list[Claimed]:
        await self.beat()
        return await self.store.claim(
            0, self.info.id, served=self.served, free_sync=count, free_async=0, lease_ms=self.info.lease_ms
        )

    async def report(self, task: Claimed, **shown: Any) -> None:
        self.reports += 1
        report = Report(id=task.id, epoch=task.epoch, number=self.reports, **shown)
        assert await self.store.report(0, self.info.id, [report]) == ["ok"]

    async def finish(self, task: Claimed, outcome: str = "succeeded", **more: Any) -> None:
        ended = Finish(id=task.id, epoch=task.epoch, outcome=outcome, **more)
        assert (await self.store.finish(0, self.info.id, [ended])) != ["stale"]


@pytest.fixture
async def gateway_of(redis_url: str) -> AsyncIterator[Callable[..., Door]]:
    """Gateways in this process with the given settings, without their listener for wake-ups."""
    doors: list[Door] = []

    def make(**options: Any) -> Door:
        settings = environment.load({}, redis_url=redis_url, **options)
        gateway = Gateway(settings, connect(settings, "gateway"))
        doors.append(Door(gateway, build(gateway)))
        return doors[-1]

    yield make
    for door in doors:
        await door.gateway.close()


def client_of(door: Door) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://gateway")


@pytest.fixture
async def live_store(redis_client: Redis) -> Store:
    """The store on Redis' own clock, as the gateway has it."""
    return Store(redis_client)


@pytest.fixture
async def worker(live_store: Store) -> Worker:
    """A supervisor that has published `echo` (strict) and `any` (anything), and has beaten."""
    worker = Worker(live_store)
    await worker.publish()
    await worker.beat()
    return worker


@pytest.fixture
async def http(gateway_of: Callable[..., Door], worker: Worker) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway with default settings."""
    async with client_of(gateway_of()) as client:
        yield client


async def submit(http: httpx.AsyncClient, **members: Any) -> dict[str, Any]:
    body = {"type": "echo", "payload": {"text": "hello"}, **members}
    answer = await http.post("/tasks", json=body)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


class Served:
    """A gateway process of its own on loopback."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def stop(self, within_s: float = 10) -> int:
        self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), within_s)


@pytest.fixture
async def serve(redis_url: str, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Served]]]:
    """Start gateway processes; those that still run are killed at the end."""
    started: list[Served] = []

    async def start(url: str = redis_url, **options: Any) -> Served:
        port_file = tmp_path / f"port-{len(started)}"
        options = {"redis_url": url, "port": 0, "grace_s": 8, **options}
        code = (
            "from app.main import run; from pathlib import Path; from taskgate.settings import load; "
            f"run(load({{}}, **{options!r}), port_file=Path({str(port_file)!r}))"
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT)

        async def port() -> str:
            assert process.returncode is None
            return port_file.read_text() if port_file.exists() else ""

        served = Served(process, f"http://127.0.0.1:{(await eventually(port, bool)).strip()}")
        started.append(served)
        return served

    yield start
    for served in started:
        if served.process.returncode is None:
            served.process.kill()
            await served.process.wait()

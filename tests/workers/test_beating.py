"""The container's health check goes by the beats of its own host's supervisors."""

import os
import socket
import subprocess
import sys

import msgspec
import pytest
from redis.asyncio import Redis

from taskgate.contract.store import Store
from tests.conftest import eventually
from tests.contract.conftest import worker_info
from workers.beating import beats


@pytest.fixture
def store(redis_client: Redis) -> Store:
    """On Redis' clock: the check compares with it."""
    return Store(redis_client)


async def beat(store: Store, *, host: str, lease_ms: int = 60_000) -> None:
    info = msgspec.structs.replace(worker_info("w1", lease_ms), host=host)
    await store.beat(0, info, held=[], served=[])


async def test_a_beat_within_the_lease_is_health(store: Store) -> None:
    await beat(store, host="here")
    assert await beats(store, "here")


async def test_another_hosts_beat_is_not(store: Store) -> None:
    await beat(store, host="there")
    assert not await beats(store, "here")


async def test_a_supervisor_silent_for_its_lease_is_not(store: Store) -> None:
    await beat(store, host="here", lease_ms=50)

    async def healthy() -> bool:
        return await beats(store, "here")

    await eventually(healthy, lambda value: not value)


@pytest.mark.parametrize(("host", "code"), [(socket.gethostname(), 0), ("elsewhere", 1)])
async def test_the_exit_code_says_it(store: Store, redis_url: str, host: str, code: int) -> None:
    await beat(store, host=host)
    environ = {"PATH": os.environ["PATH"], "TASKGATE_REDIS_URL": redis_url}
    command = [sys.executable, "-m", "workers.beating"]
    assert subprocess.run(command, env=environ, capture_output=True, check=False).returncode == code

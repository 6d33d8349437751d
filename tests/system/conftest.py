"""The rig, with everything it started ended afterwards."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.conftest import Server, server_of
from tests.system.rig import Rig


@pytest.fixture
async def rig(own_server: Server, tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(own_server, tmp_path)
    yield rig
    await rig.close()


@pytest.fixture(scope="module")
def module_server() -> Iterator[Server]:
    """A server of one module's tests."""
    with server_of("valkey") as server:
        yield server


@pytest.fixture
def memory_group() -> Iterator[str]:
    """A control group that may use 400 MiB; needs root and a memory controller that is not read-only."""
    group = Path("/sys/fs/cgroup/memory") / f"taskgate-{os.getpid()}"
    limit = group / "memory.limit_in_bytes"
    if not group.parent.exists():
        group = Path("/sys/fs/cgroup") / f"taskgate-{os.getpid()}"
        limit = group / "memory.max"
    group.mkdir()
    limit.write_text(str(400 << 20))
    yield str(group)
    group.rmdir()

"""The rig, with everything it started ended afterwards."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import Server
from tests.system.rig import Rig


@pytest.fixture
async def rig(own_server: Server, tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(own_server, tmp_path)
    yield rig
    await rig.close()

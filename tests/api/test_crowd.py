"""Who lets a gateway wait for too long, and who has only waited for the gateway."""

import asyncio
import time

import pytest

from app import crowd
from tests.conftest import eventually


@pytest.fixture(autouse=True)
def _all_agrees() -> None:
    """No server here."""


class Client:
    """A connection whose request has to arrive within half a second."""

    def __init__(self) -> None:
        self.since = asyncio.get_running_loop().time()
        self.allowed = 0.5
        self.closed = 0

    def overdue(self) -> None:
        self.closed += 1

    close = overdue


async def test_nobody_is_late_for_a_time_in_which_the_process_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop runs timers first: what has arrived meanwhile is read after the look."""
    monkeypatch.setattr(crowd, "LOOK_EVERY_S", 0.01)
    client = Client()
    assert crowd.Crowd({client}, 10).joined(client)

    time.sleep(1)  # noqa: ASYNC251
    for _ in range(2):
        await asyncio.sleep(0)
    assert client.closed == 0

    async def closed() -> int:
        return client.closed

    await eventually(closed, bool)

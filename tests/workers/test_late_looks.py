"""A supervisor that was frozen judges nobody by what it has not heard yet."""

import asyncio
import time
from typing import Any

from tests.workers.conftest import until
from tests.workers.test_lost_reports import Child
from workers.holdings import Holdings
from workers.slot import Sample
from workers.telemetry import Telemetry


class Noted(Child):
    """What was done with it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def hear(self) -> None:
        self.done.append("heard")

    def sample(self) -> Sample:
        self.done.append("looked at")
        return super().sample()


async def test_who_spoke_during_a_freeze_is_heard_before_the_next_look() -> None:
    """Timers come before sockets there: its silence would be as long as the freeze."""
    child: Any = Noted()
    nobody: Any = None
    telemetry = Telemetry(
        Holdings(),
        nobody,
        children=lambda: [child],
        now_ms=lambda: 0,
        paused=lambda: False,
        stall_after_s=1,
        stale=lambda _: None,
    )
    looking = asyncio.ensure_future(telemetry.run())
    await until(lambda: "looked at" in child.done)
    child.done.clear()
    time.sleep(1)  # noqa: ASYNC251 - the freeze
    await until(lambda: "looked at" in child.done)
    assert child.done[0] == "heard"
    looking.cancel()
    telemetry.gone(child)

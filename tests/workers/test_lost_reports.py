"""What a report that was lost had to say is said again, also when it took something back."""

import asyncio
import os
from typing import Any

import pytest

from taskgate.contract.models import Report
from taskgate.contract.store import Store
from tests.conftest import eventually
from tests.contract.conftest import Hand, read, submit
from tests.workers.conftest import until
from workers.children import ChildSpec
from workers.holdings import Holding, Holdings
from workers.lease import Lease
from workers.outbox import Outbox
from workers.procstat import ProcStat
from workers.slot import Sample, TaskSample, boot_ns
from workers.telemetry import Telemetry


class NoGuard:
    def deadline(self, ns: int) -> None: ...


class Child:
    """As one looks that runs one task; what it waits for is the test's affair."""

    spec = ChildSpec(kind="sync", handlers=())
    pid = os.getpid()
    load = 1
    exit = None
    outstanding = frozenset({1})
    waiting: str | None = "its turn"

    def __init__(self) -> None:
        self.begun_ns = boot_ns()

    def hear(self) -> None: ...

    def sample(self) -> Sample:
        return Sample(1, 1, self.begun_ns, 0, 0, 0, {1: TaskSample(1, self.begun_ns, None, self.waiting)})


class Noting(Outbox):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.answers: list[asyncio.Future[str | None]] = []

    def report(self, partition: int, item: Report, *, lasting: bool = False) -> asyncio.Future[str | None]:
        self.answers.append(super().report(partition, item, lasting=lasting))
        return self.answers[-1]

    def lost(self) -> int:
        return sum(one.done() and one.result() is None for one in self.answers)


async def test_what_a_lost_report_took_back_does_not_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    guard: Any = NoGuard()
    child: Any = Child()
    lease, hand, holdings = Lease(6, guard), Hand(store, "w1"), Holdings()
    lease.answered(0)
    outbox = Noting(store, "w1", lease)
    await hand.beat()
    await submit(store)
    holding = Holding(await hand.claim_one())
    holdings.add(holding)
    holdings.assign(holding, child, 1)
    telemetry = Telemetry(
        holdings,
        outbox,
        children=lambda: [child],
        now_ms=lambda: 0,
        paused=lambda: False,
        stall_after_s=0.01,
        stale=lambda _: None,
    )
    looking = asyncio.ensure_future(telemetry.run())

    async def told() -> tuple[str | None, str | None]:
        record = await read(store, holding.id)
        return record.seen_stage(), record.seen_health()

    await eventually(told, lambda said: said[0] == "waiting for its turn" and said[1] is not None)
    lease.contact.clear()
    child.waiting = None
    with monkeypatch.context() as patch:
        patch.setattr(ProcStat, "sample", lambda _: None)  # nothing is known of its health any more
        await until(lambda: outbox.lost() > 0)
        lease.answered(0)
        await eventually(told, lambda said: said == (None, None))
    looking.cancel()
    telemetry.gone(child)

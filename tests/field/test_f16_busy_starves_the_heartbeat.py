"""F16, a busy task starves the heartbeat: here another process beats, so nothing is taken over and nothing doubled."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import eventually
from tests.field.busy import CALLS
from tests.system.rig import FINAL, Rig

LEASE_S = 5
"""A supervisor that a loaded machine keeps from running for 3 s beats in time."""
BUSY_S = 2 * LEASE_S
pytestmark = pytest.mark.timeout(300)
KILL_S = 5.0
"""Grace between the soft signal and the kill (`workers.stops`)."""


def prepare(rig: Rig) -> None:
    rig.settings |= {"TASKGATE_LEASE_S": str(LEASE_S), "TASKGATE_HANDLERS": "tests.field.busy"}
    # Without the append-only file: a disk that others keep busy would be a Redis that is away.
    rig.server.stop()
    rig.server.start()


@pytest.fixture
async def service(rig: Rig) -> AsyncIterator[Rig]:
    """Two supervisors: one to be starved, one that would take over."""
    prepare(rig)
    for _ in range(2):
        await rig.worker()
    await rig.gateway()
    yield rig
    assert "supervisor is dead" not in (rig.folder / "worker.log").read_text()


def size_for(name: str, cpu_s: float) -> int:
    """How much keeps this machine busy for that long, in CPU time: the clock of a loaded one would say too little."""
    size, took_s = {"power": 100_000, "backtrack": 12}[name], 0.0
    while took_s < 0.2:
        size = size + 1 if name == "backtrack" else 2 * size
        begun = time.process_time()
        CALLS[name](size)
        took_s = time.process_time() - begun
    # The search doubles with each letter; 7**n grows with n to the power of 1.58 (Karatsuba).
    more = cpu_s / took_s
    return size + math.ceil(math.log2(more)) if name == "backtrack" else int(size * more ** (1 / 1.58))


@pytest.mark.parametrize("call", [pytest.param(call, marks=pytest.mark.full) for call in ("power", "backtrack")])
async def test_a_call_that_keeps_the_gil_for_longer_than_a_lease_runs_once(service: Rig, call: str) -> None:
    task_id = await service.submit("holds_gil", {call: size_for(call, BUSY_S)})
    await runs_once(service, task_id, at_least_s=BUSY_S / 2)


@pytest.mark.full
async def test_a_blocked_event_loop_runs_its_task_once(service: Rig) -> None:
    task_id = await service.submit("blocks_loop", {"ms": BUSY_S * 1000})
    await runs_once(service, task_id, at_least_s=BUSY_S)


@pytest.mark.full
async def test_four_busy_handlers_a_cpu_run_once_each(rig: Rig) -> None:
    count = 4 * (os.cpu_count() or 1)
    prepare(rig)
    await rig.worker(TASKGATE_WORKER_PROCESSES=str(count), TASKGATE_ASYNC_PROCESSES="0")
    await rig.worker(TASKGATE_WORKER_PROCESSES="1")
    await rig.gateway()
    ids = [await rig.submit("spins", {"ms": BUSY_S * 1000}) for _ in range(count)]
    await asyncio.gather(*(runs_once(rig, task_id, at_least_s=BUSY_S) for task_id in ids))
    assert "supervisor is dead" not in (rig.folder / "worker.log").read_text()


@pytest.mark.full
async def test_a_timeout_shorter_than_the_call_kills_it_in_time(service: Rig) -> None:
    task_id = await service.submit(
        "holds_gil", {"power": size_for("power", 40 * BUSY_S)}, timeout_s=LEASE_S, max_attempts=1
    )
    ended = await service.ended(task_id, within_s=60)
    assert (ended["status"], ended["error"]["kind"]) == ("failed", "timeout")
    [record] = await service.store.read([task_id])
    assert record is not None
    took_s = (record.finished_ms - record.started_ms) / 1000
    assert LEASE_S <= took_s < LEASE_S + KILL_S + 10, "the rest is for a loaded machine"


async def runs_once(rig: Rig, task_id: str, *, at_least_s: float) -> None:
    """It succeeds in its first attempt, and shows nothing but `running` from its start to its end."""
    seen: list[str] = []

    async def look() -> dict[str, Any]:
        started = any(run.task_id == task_id for run in rig.runs())  # until then it may be handed back
        task = await rig.task(task_id)
        seen.extend([task["status"]] * started)
        return task

    ended = await eventually(look, lambda task: task["status"] in FINAL, within_s=240, every_s=0.1)
    assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
    shown = [status for n, status in enumerate(seen) if not n or status != seen[n - 1]]
    assert shown == [status for status in ("running", "succeeded") if status in shown], shown
    [run] = [run for run in rig.runs() if run.task_id == task_id]
    assert run.end is not None
    assert (run.end - run.start) / 1e9 >= at_least_s

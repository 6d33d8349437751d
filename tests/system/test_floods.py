"""Floods: refused clients that come again when they are told to, and many times what is drained, on real processes."""

import asyncio
import json
import os
import statistics
from pathlib import Path
from typing import Any

import pytest

from loadtest import client, crowds, open_loop
from loadtest.floods import KEPT_BYTES, obeying_figures
from taskgate.platform import raise_open_files_limit
from tests.conftest import eventually
from tests.system.rig import Rig

LIMIT = 100
RUN_MS = 50


def bodies(count: int) -> list[str]:
    return [json.dumps({"type": "wait", "payload": {"ms": RUN_MS, "n": n}}) for n in range(count)]


async def serving(rig: Rig, limit: int = LIMIT, slots: int = 4, **settings: str) -> float:
    """A service whose 50 ms tasks have been measured; how many of them a second leave the queue."""
    raise_open_files_limit()
    # Without the append-only file: a disk that others keep busy would be a Redis that is away.
    rig.server.stop()
    rig.server.start()
    rig.settings |= {"TASKGATE_ASYNC_SLOTS": str(slots), "TASKGATE_QUEUE_LIMIT_TASKS": str(limit), **settings}
    await asyncio.gather(rig.worker(), rig.gateway())
    await crowds.obeying(rig.url, bodies(limit))
    await ran(rig, limit)
    starts = sorted(run.start for run in rig.runs())
    return (len(starts) - 1) / ((starts[-1] - starts[0]) / 1e9)


async def ran(rig: Rig, count: int, *, within_s: float = 60) -> None:
    async def runs() -> int:
        return len(rig.runs())

    await eventually(runs, lambda found: found == count, within_s=within_s, every_s=0.1)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("clients", "limit", "slots"), [(100, 50, 2), pytest.param(1_000, LIMIT, 4, marks=pytest.mark.full)]
)
async def test_clients_that_obey_retry_after_get_in_as_fast_as_tasks_leave_and_without_a_stampede(
    rig: Rig, clients: int, limit: int, slots: int
) -> None:
    """`limit` is over what leaves in a second: a smaller queue would stand empty between two bunches of clients."""
    drain_per_s = await serving(rig, limit, slots)
    answers = await crowds.obeying(rig.url, bodies(clients))
    seen = obeying_figures(answers, clients, limit=limit, drain_per_s=drain_per_s)
    accepted = [answer for answer in answers if answer.status == 202]
    assert (len(accepted), seen["wrong"]) == (clients, 0)
    rounding_s = 2  # what Retry-After may be more than the row, in a round; few clients have few rounds
    assert seen["took_s"] < 5 * (1.11 * (clients - limit) / drain_per_s + rounding_s)
    assert seen["busiest"] < 5 * 5
    assert seen["tries"] < 5
    await ran(rig, limit + clients)


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_ten_times_the_drain_is_answered_with_202_and_429_alone_and_leaves_memory_flat(rig: Rig) -> None:
    drain_per_s = await serving(rig, slots=2, TASKGATE_RETENTION_BYTES=str(KEPT_BYTES))
    half = await pour(rig, drain_per_s / 2, seconds=5)
    assert set(half["statuses"]) == {"202"}
    p99_ms = []
    for _ in range(3):
        report, memory = await flooded(rig, 10 * drain_per_s)
        assert set(report["statuses"]) == {"202", "429"}
        assert report["statuses"]["202"] > drain_per_s * 15 / 5
        settled, last = memory[len(memory) // 2], memory[-1]
        assert all(after < 1.1 * before for before, after in zip(settled, last, strict=True)), memory
        p99_ms.append(report["accepted_p99_ms"])
    # The middle one: a machine that stands still for a moment lets one flood wait.
    assert statistics.median(p99_ms) < 5 * max(50.0, 2 * half["accepted_p99_ms"]), p99_ms


async def flooded(rig: Rig, per_s: float) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """For 15 s; and the memory of gateway and server, once a second."""
    flood = asyncio.ensure_future(pour(rig, per_s, seconds=15))
    gateway = rig.processes[-1].pid
    memory = []
    while not flood.done():
        memory.append((resident_bytes(gateway), int((await rig.redis.info("memory"))["used_memory"])))
        await asyncio.wait([flood], timeout=1)
    return await flood, memory


async def pour(rig: Rig, per_s: float, *, seconds: float) -> dict[str, Any]:
    body = f'{{"type":"wait","payload":{{"ms":{RUN_MS},"n":{client.NUMBER}}}}}'
    plan = client.Plan(url=f"{rig.url}/tasks", method="POST", body=body, seconds=seconds)
    return await asyncio.to_thread(open_loop.run, plan, rate=per_s)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

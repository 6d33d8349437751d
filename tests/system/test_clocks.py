"""Supervisors whose wall clocks are ten minutes off: starts, retries and takeovers are as with right ones."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import parent_of
from tests.system.rig import Rig
from tests.system.ticking import Ticking

LEASE_S = 5.0
SKEWS = {"ahead": "+600s", "right": "", "behind": "-600s"}
SLACK_S = 20.0
"""For a busy machine; a clock that matters would be off by minutes."""


def with_clock(skew: str) -> dict[str, str]:
    """The environment in which libfaketime moves the wall clock and leaves the others alone."""
    if not skew:
        return {}
    [library] = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return {"LD_PRELOAD": str(library), "FAKETIME": skew, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_starts_retries_and_takeovers_do_not_depend_on_wall_clocks(rig: Rig) -> None:
    """One clock ahead, one right, one behind; each has a queue of its own, and all have `all`."""
    ticking = Ticking(rig, lease_s=LEASE_S)
    workers = {
        name: await rig.worker(TASKGATE_QUEUES=f"{name},all", TASKGATE_ASYNC_PROCESSES="0", **with_clock(skew))
        for name, skew in SKEWS.items()
    }
    await rig.gateway()
    await ticking.until_whole(*(worker.pid for worker in workers.values()))
    started_s = {name: started_ms / 1000 for name, started_ms in (await _starts(rig, workers)).items()}
    assert 500 < started_s["ahead"] - started_s["right"] < 700, "the clock is not moved"
    assert 500 < started_s["right"] - started_s["behind"] < 700, "the clock is not moved"

    delayed = {name: await rig.submit("ticks", {"ms": 10}, queue=name, delay_s=2) for name in SKEWS}
    at = time.time() + 2
    dated = {name: await rig.submit("ticks", {"ms": 10}, queue=name, run_at=_iso(at)) for name in SKEWS}
    again = {name: await rig.submit("again", {"after_s": 2.0}, queue=name) for name in SKEWS}
    for name in SKEWS:
        for task_id in (delayed[name], dated[name], again[name]):
            assert await ticking.ended(task_id) == "succeeded"
        [record] = await rig.store.read([delayed[name]])
        assert record is not None
        assert 2000 <= record.started_ms - record.created_ms < 2000 + SLACK_S * 1000, name
        [record] = await rig.store.read([dated[name]])
        assert record is not None
        assert at * 1000 - 1 <= record.started_ms < (at + SLACK_S) * 1000, name
        first, second = ticking.attempts(again[name])
        assert 2 <= (second.first - first.last) / 1e9 < 2 + SLACK_S, name
    assert _deaths(rig) == [], "a supervisor that lives was taken for dead"

    alive = {worker.pid: worker for worker in workers.values()}
    for takeovers in (1, 2):
        task_id = await rig.submit("ticks", {"ms": 60_000, "then_ms": 50}, queue="all")
        victim = alive.pop(parent_of((await ticking.started(task_id)).pid))
        died = time.clock_gettime(time.CLOCK_BOOTTIME)
        victim.kill()
        victim.wait()
        second = await ticking.started(task_id, attempt=2)
        assert LEASE_S / 2 < second.first / 1e9 - died < LEASE_S + SLACK_S
        assert await ticking.ended(task_id) == "succeeded"
        assert ticking.overlap_ns(task_id) < 0
        assert len(set(_deaths(rig))) == takeovers


async def _starts(rig: Rig, workers: dict[str, Any]) -> dict[str, int]:
    """When each supervisor thinks that it was started."""
    found = {worker.pid: worker.started_ms for worker in await rig.store.workers()}
    return {name: found[process.pid] for name, process in workers.items()}


def _deaths(rig: Rig) -> list[str]:
    """Whom the supervisors have called dead."""
    lines = (json.loads(line) for line in (rig.folder / "worker.log").read_text().splitlines() if line[:1] == "{")
    return [line["dead"] for line in lines if line.get("message") == "supervisor is dead"]


def _iso(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s)) + f".{int(unix_s * 1000) % 1000:03d}Z"

"""Health proved live: what tasks do on a machine that has twice as much to do as it can, against what is shown."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import eventually
from tests.system.rig import FINAL, Rig

LEASE_S = 6.0
STALL_AFTER_S = 1.0
LOOK_S = 0.1
"""Whoever looks takes CPU time too."""
FALSE = {"lost", "paused"}
pytestmark = pytest.mark.timeout(240)

HOG = "import os; os.nice(19)\nwhile True: pass"
"""Behind the children, which are at 5: what competes with them is to take some of their CPU, not most."""


@pytest.fixture
def twice_its_cpu() -> Iterator[None]:
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(4)]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


class Seen(NamedTuple):
    task_id: str
    verdicts: list[str]
    """Each that was shown, once for every time in a row."""
    task: dict[str, Any]
    """As it was shown last."""


async def start(rig: Rig, *, children: int, **settings: str) -> None:
    # Without the append-only file: a disk that others keep busy would be a Redis that is away.
    rig.server.stop()
    rig.server.start()
    rig.settings |= {
        "TASKGATE_HANDLERS": "tests.system.effort_jobs",
        "TASKGATE_STALL_AFTER_S": str(STALL_AFTER_S),
        "TASKGATE_WORKER_PROCESSES": str(children),
        **settings,
    }
    await asyncio.gather(rig.worker(), rig.gateway())


async def watch(rig: Rig, task_type: str, payload: Any, *until: str, for_s: float = 0) -> Seen:
    """Look all the time until one of these verdicts was shown, and `for_s` longer; then cancel it."""
    task_id = await rig.submit(task_type, payload)
    verdicts: list[str] = []

    async def look() -> dict[str, Any]:
        task = await rig.task(task_id)
        if task["health"] and verdicts[-1:] != [task["health"]]:
            verdicts.append(task["health"])
        return task

    task = await eventually(
        look, lambda task: not set(until).isdisjoint(verdicts) or task["status"] in FINAL, within_s=120, every_s=LOOK_S
    )
    ends_at = time.monotonic() + for_s
    while time.monotonic() < ends_at:
        task = await look()
        await asyncio.sleep(LOOK_S)
    if task["status"] not in FINAL:
        await rig.http.post(f"/tasks/{task_id}/cancel")
        await rig.ended(task_id, within_s=60)
    return Seen(task_id, verdicts, task)


async def trials(rig: Rig, count: int, at_once: int, *args: Any, **more: Any) -> list[Seen]:
    room = asyncio.Semaphore(at_once)

    async def one() -> Seen:
        async with room:
            return await watch(rig, *args, **more)

    return await asyncio.gather(*(one() for _ in range(count)))


def starved_share(rig: Rig, task_id: str) -> float:
    """The largest part of 0.8 s or more for which the task's thread stood in the run queue, as it found itself."""
    told = Path(f"{rig.stamps}.{task_id}").read_text().splitlines()
    points = [(int(at), int(waited)) for at, waited in map(str.split, told)]
    shares, i = [0.0], 0
    for at, waited in points:
        while points[i + 1][0] <= at - 800_000_000:
            i += 1
        if at - points[i][0] >= 800_000_000:
            shares.append((waited - points[i][1]) / (at - points[i][0]))
    return max(shares)


def check_computing(rig: Rig, seen: Seen) -> None:
    """`starved` may be shown of it when it is true: others may use this machine too."""
    assert seen.verdicts, seen
    assert set(seen.verdicts) <= {"computing", "starved"}, seen
    if "starved" in seen.verdicts:
        assert starved_share(rig, seen.task_id) > (0.3 if "computing" in seen.verdicts else 0.5), seen


async def check_busy(rig: Rig, count: int, at_once: int) -> None:
    for seen in await trials(rig, count, at_once, "busy", None, "computing", "starved"):
        check_computing(rig, seen)


async def check_silent(rig: Rig, count: int, at_once: int, task_type: str) -> None:
    """In its first second it may still compute."""
    for seen in await trials(rig, count, at_once, task_type, None, "stalled"):
        assert seen.verdicts[-1] == "stalled", seen
        assert not FALSE & set(seen.verdicts), seen


async def check_waiting(rig: Rig, count: int, at_once: int, task_type: str) -> None:
    for seen in await trials(rig, count, at_once, task_type, None, "waiting", for_s=STALL_AFTER_S + 1.5):
        assert seen.verdicts[-1] == "waiting", seen
        assert (
            seen.task["stage"] == "waiting for " + {"waits": "the printer", "awaits": "another supervisor"}[task_type]
        )
        assert not (FALSE | {"stalled"}) & set(seen.verdicts), seen


async def check_speaking(rig: Rig, count: int, at_once: int) -> None:
    """Its own second of waiting is no stall."""
    for seen in await trials(rig, count, at_once, "speaks", None, "waiting", for_s=STALL_AFTER_S + 1.5):
        assert not (FALSE | {"stalled"}) & set(seen.verdicts), seen


async def test_each_does_what_is_shown_of_it(rig: Rig, twice_its_cpu: None) -> None:
    await start(rig, children=4)
    await asyncio.gather(
        check_busy(rig, 1, 1),
        check_silent(rig, 1, 1, "sleeps"),
        check_silent(rig, 2, 2, "asleeps"),
        check_waiting(rig, 1, 1, "waits"),
        check_speaking(rig, 1, 1),
    )


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_a_hundred_of_each_are_what_is_shown_of_them(rig: Rig, twice_its_cpu: None) -> None:
    await start(rig, children=9)
    await asyncio.gather(
        check_busy(rig, 100, 2),
        check_silent(rig, 50, 3, "sleeps"),
        check_silent(rig, 50, 5, "asleeps"),
        check_waiting(rig, 50, 4, "waits"),
        check_waiting(rig, 50, 5, "awaits"),
    )


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_a_task_that_collects_garbage_is_computing_and_shows_its_pauses(rig: Rig, twice_its_cpu: None) -> None:
    await start(rig, children=1)
    payload = {"objects": 2_000_000, "ms": 5_000}
    task_id = await rig.submit("collects", payload)
    await eventually(
        lambda: rig.task(task_id),
        lambda task: task["status"] == "running" and ((task["effort"] or {}).get("gc_pause_ms") or 0) > 100,
        within_s=60,
    )
    await rig.ended(task_id, within_s=60)

    seen = await watch(rig, "collects", payload)
    check_computing(rig, seen)
    assert seen.task["status"] == "succeeded"
    paused_ms = (await rig.http.get(f"/tasks/{seen.task_id}/result")).json()
    assert paused_ms > payload["ms"] / 4, "it did little else"
    assert seen.task["effort"]["gc_pause_ms"] >= 0.9 * paused_ms
    assert seen.task["effort"]["shared"] is False


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_more_busy_processes_than_cores_are_starved(rig: Rig) -> None:
    """Some stay from first to last: whoever is left alone has a core for itself."""
    await start(rig, children=12)
    for task_id in [await rig.submit("busy", None) for _ in range(4)]:
        await rig.running(task_id, within_s=60)
    for seen in await trials(rig, 100, 8, "busy", None, "starved"):
        assert set(seen.verdicts) <= {"computing", "starved"}, seen
        assert starved_share(rig, seen.task_id) > 0.3, seen


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_when_all_supervisors_are_killed_their_tasks_are_lost_and_run_again(
    rig: Rig, twice_its_cpu: None
) -> None:
    await start(rig, children=1, TASKGATE_LEASE_S=str(LEASE_S))
    second = await rig.worker()
    ids = [await rig.submit("awaits", None) for _ in range(100)]
    for task_id in ids:
        await rig.running(task_id, within_s=60)
    await asyncio.gather(*(check_age(rig, task_id) for task_id in ids[:10]))
    supervisors = [rig.processes[0], second]
    assert [process.poll() for process in supervisors] == [None, None]
    for supervisor in supervisors:
        supervisor.send_signal(signal.SIGKILL)

    async def speaking() -> list[str]:
        """A beat that was on its way may be counted after the kill."""
        return [each["name"] for each in await rig.redis.client_list() if "supervisor" in each["name"]]

    await eventually(speaking, lambda found: not found)
    killed_s = time.monotonic()

    took_s = await asyncio.gather(*(until_lost(rig, task_id, killed_s) for task_id in ids))
    assert max(took_s) < LEASE_S + 5 * 2
    await rig.worker()
    for task_id in ids:
        ended = await rig.ended(task_id, within_s=90)
        assert (ended["status"], ended["attempt"]) == ("succeeded", 2)


async def check_age(rig: Rig, task_id: str) -> None:
    """While it lives it is not `lost`, and its sign of life no older than a lease; a busy machine has its moments."""
    alive = 0
    for _ in range(20):
        task = await rig.task(task_id)
        age_ms = task["heartbeat_age_ms"]
        assert (age_ms is None) == (task["health"] == "lost"), task
        alive += age_ms is not None and 0 <= age_ms < LEASE_S * 1000
        await asyncio.sleep(0.05)
    assert alive > 10, task


async def until_lost(rig: Rig, task_id: str, killed_s: float) -> float:
    """Seconds after the kill. Until then its sign of life grows old as time passes."""
    while True:
        asked_s = time.monotonic()
        task = await rig.task(task_id)
        if task["health"] == "lost":
            assert (task["status"], task["heartbeat_age_ms"]) == ("running", None)
            assert task["stage"] == "waiting to be taken over"
            return time.monotonic() - killed_s
        assert task["heartbeat_age_ms"] >= (asked_s - killed_s) * 1000 - 100
        await asyncio.sleep(0.2)

"""What tasks say of themselves, through the whole service: never torn, in order, bounded, and there before the end."""

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from taskgate.contract import keys
from taskgate.contract.models import Event
from tests.api.sse_client import Resuming
from tests.conftest import eventually
from tests.system.effort_jobs import checked
from tests.system.rig import FINAL, Rig

pytestmark = pytest.mark.timeout(240)
UNKNOWN = "events may be missing before this point"


async def start(rig: Rig, *, children: int = 2, **settings: str) -> None:
    # Without the append-only file: a disk that others keep busy would slow down what is counted here.
    rig.server.stop()
    rig.server.start()
    rig.settings |= {
        "TASKGATE_HANDLERS": "tests.system.effort_jobs",
        "TASKGATE_WORKER_PROCESSES": str(children),
        **settings,
    }
    await asyncio.gather(rig.worker(), rig.gateway())


@pytest.fixture
async def service(rig: Rig) -> Rig:
    await start(rig)
    return rig


async def stream(rig: Rig, task_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Everything that a client is sent until the end."""
    told = Resuming(rig.url, f"/tasks/{task_id}/events")
    await told.read(idle_s=60)
    return [(block.name, block.data) for block in told.blocks]


def is_whole(progress: dict[str, Any]) -> bool:
    """Every part proves the others."""
    wanted = checked(int(progress["current"]))
    return {name: progress[name] for name in wanted} == wanted


async def check_threads(rig: Rig, ms: int) -> None:
    """Eight threads report as fast as they can; polled, streamed and kept, every value is whole."""
    watched = rig.folder / "watched"
    task_id = await rig.submit("many_threads", {"ms": ms, "after": str(watched)})
    client = Resuming(rig.url, f"/tasks/{task_id}/events")
    watching = asyncio.ensure_future(client.read(idle_s=60))
    seen: dict[float, bool] = {}

    async def blocks() -> int:
        return len(client.blocks)

    await eventually(blocks, bool, within_s=60)
    watched.touch()

    async def look() -> dict[str, Any]:
        task = await rig.task(task_id)
        if task["progress"]:
            seen[task["progress"]["current"]] = is_whole(task["progress"])
        return task

    task = await eventually(look, lambda task: task["status"] in FINAL, within_s=ms / 1000 + 60)
    assert task["status"] == "succeeded"
    await watching
    told = [block.data for block in client.blocks if block.name == "progress"]
    kept = [json.loads(event.data) for event in await events(rig, task_id) if event.name == "progress"]
    assert all(seen.values()), seen
    assert all(map(is_whole, told + kept)), told
    assert min(len(seen), len(told), len(kept)) >= 1


async def events(rig: Rig, task_id: str) -> list[Event]:
    return await rig.store.events(task_id, count=10_000)


async def check_last_before_the_end(rig: Rig, count: int) -> None:
    lasts = {await rig.submit("reports", {"ms": random.randint(0, 5), "last": n}): n for n in range(count)}
    watched = list(lasts)[:: max(1, count // 5)]
    blocks = await asyncio.gather(*(stream(rig, task_id) for task_id in watched))
    for task_id, last in lasts.items():
        task = await rig.ended(task_id, within_s=60)
        assert task["progress"]["current"] == last
        *_, progress, end = [event for event in await events(rig, task_id) if event.name in ("progress", "status")]
        assert (progress.name, end.name, json.loads(end.data)["status"]) == ("progress", "status", "succeeded")
        assert json.loads(progress.data)["current"] == last
        assert progress.seq < end.seq
    for task_id, told in zip(watched, blocks, strict=True):
        names = [name for name, _ in told]
        shown = [data.get("current", (data.get("progress") or {}).get("current")) for _, data in told]
        assert names[-1] == "end"
        assert lasts[task_id] in shown[:-1], told


async def check_rate(rig: Rig, ms: int) -> None:
    """However often it reports: four writes a second, the claim, and the end with the last value."""
    task_id = await rig.submit("reports", {"ms": ms, "last": 1})
    task = await rig.ended(task_id, within_s=ms / 1000 + 60)
    [record] = await rig.store.read([task_id])
    assert record is not None
    ran_s = (record.finished_ms - record.started_ms) / 1000
    kept = len(await events(rig, task_id))
    assert task["version"] <= 4 * ran_s + 1 + kept, (ran_s, kept)
    assert task["version"] >= 4


async def check_tokens(rig: Rig, count: int) -> None:
    """50 a second of 2 KiB each reach whoever watches and whoever comes late, all of them and in order."""
    task_id = await rig.submit("emits", {"count": count, "bytes": 2_000, "every_ms": 20})
    live = await stream(rig, task_id)
    late = await stream(rig, task_id)
    for told in (live, late):
        assert "gap" not in [name for name, _ in told]
        own = [data for name, data in told if name == "custom"]
        assert [data["n"] for data in own] == list(range(1, count + 1))
        assert [data["data"]["i"] for data in own] == list(range(count))


async def check_flood(rig: Rig, count: int) -> None:
    """What is too much is counted where it is missing; nobody else notices."""
    task_id = await rig.submit("emits", {"count": count, "bytes": 1_000, "every_ms": 0})
    told = [(name, data) for name, data in await stream(rig, task_id) if name in ("custom", "gap")]
    at = 0
    for name, data in told:
        if name == "custom":
            # Who reads more slowly than it is written gets a gap of the stream's own, which knows no number.
            assert data["n"] == at + 1 or (data["n"] > at and ("gap", {"detail": UNKNOWN}) in told)
            at = data["n"]
        else:
            at += data.get("lost", 0)
    assert at == count
    assert 100 <= sum(name == "custom" for name, _ in told) < count
    assert len(await events(rig, task_id)) < 1_000


async def killed(rig: Rig, task_id: str, *, supervisor: bool) -> int:
    """Kill the process that runs it, or its supervisor; the least from which it must resume."""
    path = Path(f"{rig.stamps}.{task_id}")

    async def saved() -> list[int]:
        return list(json.loads(path.read_text())) if path.exists() else [0, 0]

    sent, pid = await eventually(saved, lambda said: said[0] >= 5, within_s=60)
    if not supervisor:
        os.kill(pid, signal.SIGKILL)
        return sent
    # A supervisor takes with it what it has not written yet; a child has given away what it has sent.
    written = await eventually(lambda: checkpoint_of(rig, task_id), bool, within_s=60)
    [worker] = await rig.store.workers()
    os.kill(worker.pid, signal.SIGKILL)
    await rig.worker()
    return int(json.loads(written)["n"])


async def checkpoint_of(rig: Rig, task_id: str) -> Any:
    return await rig.redis.hget(keys.task(0, task_id), "checkpoint")


async def check_resumes(rig: Rig, how: str) -> None:
    """From the last that had been sent when the attempt ended, however it did."""
    more: dict[str, Any] = {"every_ms": 10}
    if how == "raises":
        more["raises_at"] = 37
    task_id = await rig.submit("saves", more, **({"timeout_s": 3} if how == "times out" else {}))
    least = await killed(rig, task_id, supervisor=how == "supervisor dies") if "dies" in how else 1
    task = await rig.ended(task_id, within_s=90)
    assert (task["status"], task["attempt"]) == ("succeeded", 2), task
    resumed = (await rig.http.get(f"/tasks/{task_id}/result")).json()
    assert resumed["n"] >= (37 if how == "raises" else least)
    if how == "times out":
        last, _ = json.loads(Path(f"{rig.stamps}.{task_id}").read_text())
        assert last <= resumed["n"] <= last + 1


async def check_death(rig: Rig) -> None:
    """Of a task that was killed: its last words, and what it had used."""
    task = await rig.ended(await rig.submit("dies", {"ms": 300}), within_s=60)
    assert (task["status"], task["progress"]["current"], task["progress"]["stage"]) == ("failed", 7, "last words")
    assert 280 <= task["effort"]["cpu_ms"] < 1_000


async def check_effort(rig: Rig, ms: int) -> None:
    """Within 10 % of what the kernel tells the task itself, at the end and on the way."""
    task_id = await rig.submit("burns", {"ms": ms})
    shown: list[int] = []

    async def look() -> dict[str, Any]:
        task = await rig.task(task_id)
        shown.append((task["effort"] or {}).get("cpu_ms") or 0)
        return task

    task = await eventually(look, lambda task: task["status"] in FINAL, within_s=120, every_s=0.1)
    used_ms = (await rig.http.get(f"/tasks/{task_id}/result")).json()
    assert 0.98 * used_ms <= task["effort"]["cpu_ms"] <= 1.1 * used_ms + 20
    assert shown == sorted(shown)
    assert max(shown[:-1], default=0) <= 1.1 * used_ms + 20
    assert task["effort"]["shared"] is False


async def check_shared(rig: Rig) -> None:
    """An event loop's process is several tasks': what is known of it alone is marked, the rest is null."""
    idle, works = await rig.submit("asleeps", None), await rig.submit("abusy", None)
    for task_id, verdict in ((works, "computing"), (idle, "waiting")):
        effort = (await until_it_is(rig, task_id, verdict))["effort"]
        assert (effort["shared"], effort["cpu_ms"], effort["cpu_wait_ms"]) == (True, None, None)
        assert effort["rss_bytes"] > 10_000_000
        await rig.http.post(f"/tasks/{task_id}/cancel")


async def until_it_is(rig: Rig, task_id: str, verdict: str) -> dict[str, Any]:
    """Or starved, as all may be that use this machine."""
    return await eventually(
        lambda: rig.task(task_id),
        lambda task: task["effort"] and task["health"] in (verdict, "starved"),
        within_s=60,
    )


async def check_stages(rig: Rig) -> None:
    """What the service does with a task that is not its handler's doing."""
    later = await rig.task(await rig.submit("quick", 1, delay_s=600))
    assert later["stage"] == "waiting for its start time"
    stubborn = await rig.submit("deaf_when_stopped", None)
    watching = asyncio.ensure_future(stream(rig, stubborn))
    await eventually(lambda: rig.task(stubborn), lambda task: task["stage"] == "stopping", within_s=60)
    ended = await rig.ended(stubborn, within_s=60)
    assert (ended["status"], ended["stage"]) == ("failed", None)
    told = [data["stage"] for name, data in await watching if name == "snapshot"]
    assert "stopping" in told


async def check_saves_without_end(rig: Rig) -> None:
    """A quarter of a mebibyte as fast as it can: its cancel, and its neighbours, take no longer for it."""
    task_id = await rig.submit("saves", {"bytes": 250_000})
    await rig.running(task_id, within_s=60)
    for _ in range(3):
        begun = time.monotonic()
        await rig.ended(await rig.submit("quick", 1), within_s=60)
        assert time.monotonic() - begun < 20, "moments on a quiet machine"
    begun = time.monotonic()
    await rig.http.post(f"/tasks/{task_id}/cancel")
    assert (await rig.ended(task_id, within_s=60))["status"] == "canceled"
    assert time.monotonic() - begun < 20


async def test_what_a_task_says_is_whole_in_order_bounded_and_there_before_its_end(rig: Rig) -> None:
    await start(rig, children=4)
    await asyncio.gather(
        check_threads(rig, 1_000),
        check_last_before_the_end(rig, 10),
        check_flood(rig, 2_000),
        check_death(rig),
        check_resumes(rig, "child dies"),
    )


@pytest.mark.full
async def test_from_eight_threads_nothing_is_ever_torn(service: Rig) -> None:
    await check_threads(service, 5_000)


@pytest.mark.full
async def test_of_a_thousand_tasks_each_tells_its_last_progress_before_its_end(service: Rig) -> None:
    await check_last_before_the_end(service, 1_000)


@pytest.mark.full
async def test_however_often_a_task_reports_four_times_a_second_are_written(rig: Rig) -> None:
    """Also with more of them than the machine has cores."""
    await start(rig, children=8)
    await asyncio.gather(*(check_rate(rig, 4_000) for _ in range(8)))


@pytest.mark.full
async def test_a_stream_of_tokens_passes_wholly(service: Rig) -> None:
    await asyncio.gather(check_tokens(service, 250), check_tokens(service, 250))


@pytest.mark.full
async def test_a_flood_of_events_has_gaps_that_say_how_many_are_missing(service: Rig) -> None:
    await asyncio.gather(check_flood(service, 20_000), check_flood(service, 20_000))


@pytest.mark.full
@pytest.mark.parametrize("ways", [("child dies", "times out", "raises"), ("supervisor dies",)], ids=" ".join)
async def test_the_next_attempt_resumes_from_the_last_checkpoint(rig: Rig, ways: tuple[str, ...]) -> None:
    await start(rig, TASKGATE_LEASE_S="2", children=3)
    await asyncio.gather(*(check_resumes(rig, how) for how in ways))


@pytest.mark.full
async def test_effort_is_what_the_kernel_says_and_what_is_shared_is_marked(rig: Rig) -> None:
    await start(rig, TASKGATE_STALL_AFTER_S="60")
    await asyncio.gather(check_effort(rig, 3_000), check_death(rig), check_shared(rig))


@pytest.mark.full
async def test_stages_of_the_service_are_told_and_checkpoints_without_end_slow_nobody_else(rig: Rig) -> None:
    await start(rig, children=3)
    await asyncio.gather(check_stages(rig), check_saves_without_end(rig))

"""F10: streams of a silent job have their headers at once and a heartbeat, and what resets them leaves nothing."""

import asyncio
import time

import pytest

from tests.api.conftest import subscriptions
from tests.api.sse_client import Resuming
from tests.conftest import eventually
from tests.processes import open_files
from tests.system.rig import Rig

HEARTBEAT_S = 15

pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]


async def test_f10_heartbeats_and_five_hundred_resets_on_a_silent_job(rig: Rig) -> None:
    rig.settings["TASKGATE_HANDLERS"] = "tests.field.streaming_jobs"
    await rig.worker()
    gateway = await rig.gateway()
    task_id = await rig.submit("silent", None)
    await rig.running(task_id)
    path = f"/tasks/{task_id}/events"

    async def usage() -> tuple[int, int]:
        return open_files(gateway.pid), await subscriptions(rig.redis)

    await rig.task(task_id)
    files, subscribed = await usage()
    for accepted in ("identity", "gzip"):
        asked = time.monotonic()
        async with rig.http.stream("GET", path, headers={"Accept-Encoding": accepted}, timeout=60) as answer:
            assert time.monotonic() - asked < 10, "not with the first heartbeat"
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert (answer.headers["x-accel-buffering"], answer.status_code) == ("no", 200)
            if accepted == "gzip":
                continue
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    break
            assert time.monotonic() - asked < 2 * HEARTBEAT_S

    for _ in range(10):
        streams = [await Resuming(rig.url, path).connect() for _ in range(50)]
        await asyncio.gather(*(stream.read(most=1, idle_s=30) for stream in streams))
        for stream in streams:
            stream.reset()

    def back(found: tuple[int, int]) -> bool:
        return found[0] <= files + 17 and found[1] <= subscribed

    await eventually(usage, back, within_s=60)
    assert (await rig.http.post(f"/tasks/{task_id}/cancel")).status_code in (200, 202)
    assert (await rig.ended(task_id))["status"] == "canceled"

"""Where is it, through the whole service: live stacks by every gateway, and those that errors and events carry."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.system.rig import Rig


async def serving(rig: Rig) -> str:
    """A supervisor and two gateways; the URL of the second."""
    rig.settings |= {"TASKGATE_HANDLERS": "tests.workers.stack_jobs", "TASKGATE_GRACE_S": "2"}
    await rig.worker(TASKGATE_STALL_AFTER_S="0.5")
    await rig.gateway()
    return f"http://127.0.0.1:{await rig.another_gateway()}"


async def stack(rig: Rig, task_id: str, wanted: Any, *, url: str = "") -> dict[str, Any]:
    """What is told of it, once it fits: right after its start it may not have got anywhere."""

    async def read() -> tuple[int, dict[str, Any]]:
        answer = await rig.http.get(f"{url}/tasks/{task_id}/stack")
        return answer.status_code, answer.json()

    _, found = await eventually(read, lambda got: got[0] == 200 and wanted(got[1]), within_s=60)
    return found


@pytest.mark.full
async def test_stacks_are_told_live_by_every_gateway_and_carried_by_errors_and_events(rig: Rig) -> None:
    second = await serving(rig)
    late = await rig.submit("stands", str(rig.folder / "never"), timeout_s=5, max_attempts=1)
    dies = await rig.submit("segfaults", None, max_attempts=1)

    await _live(rig, second)
    error = (await rig.ended(dies, within_s=60))["error"]
    assert (error["kind"], error["stack"].splitlines()[0]) == ("crash", "Fatal Python error: Segmentation fault")
    error = (await rig.ended(late, within_s=60))["error"]
    assert (error["kind"], " in inner\n" in error["stack"]) == ("timeout", True)
    await _one_stall(rig)


async def _live(rig: Rig, second: str) -> None:
    until = str(rig.folder / "go")
    sync, loop = await rig.submit("stands", until), await rig.submit("async.stands", until)
    for url in ("", second):
        found = await stack(rig, sync, lambda got: " in inner\n" in (got["text"] or ""), url=url)
        assert (found["source"], found["shared"], found["attempt"]) == ("faulthandler", False, 1)
        # While it begins, faulthandler may have to tell of a loop that does not answer in time.
        await stack(rig, loop, _told_by_its_loop, url=url)
    shown = await eventually(lambda: rig.task(sync), lambda task: task["progress"], within_s=60)
    pid = shown["progress"]["current"]
    assert Path(f"/proc/{pid}/cmdline").read_bytes().find(b"workers.child") > 0
    os.kill(pid, signal.SIGSTOP)
    found = await stack(rig, sync, lambda got: got["reason"] == "paused")
    assert (found["threads"], found["text"]) == (None, None)
    os.kill(pid, signal.SIGCONT)
    (rig.folder / "go").touch()
    await rig.ended(sync)
    refused = await rig.http.get(f"/tasks/{sync}/stack")
    assert (refused.status_code, refused.json()["task_status"]) == (409, "succeeded")


def _told_by_its_loop(found: dict[str, Any]) -> bool:
    return found["source"] == "loop" and " in async_stands" in found["text"]


async def _one_stall(rig: Rig) -> None:
    async def told() -> list[dict[str, Any]]:
        return [json.loads(one.data) for one in await rig.store.events(task_id) if one.name == "stalled"]

    for _ in range(5):  # a loop that is kept from running does not answer in time, which is told once, too
        task_id = await rig.submit("async.neighbour", None)
        [stalled] = await eventually(told, bool, within_s=60)
        if stalled["source"] == "loop":
            break
    assert (stalled["source"], stalled["reason"]) == ("loop", None)
    assert " in neighbours_secret\n" in stalled["stack"]
    # Its effort is written every second: after more looks it is still that one stall.
    seen = (await rig.task(task_id))["version"]
    await eventually(lambda: rig.task(task_id), lambda task: task["version"] > seen + 1, within_s=60)
    assert await told() == [stalled]

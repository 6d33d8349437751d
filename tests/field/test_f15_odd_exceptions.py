"""F15, exceptions that do not travel: each ends its own task, with its name and a bounded message."""

import json

import httpx
import pytest

from tests.field.misbehaving import ERRORS
from tests.system.rig import Rig
from workers.failures import MESSAGE_CHARS

HANDLERS = "tests.field.misbehaving,tests.system.death_jobs"
pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]


async def test_odd_exceptions_are_shown_as_valid_json_and_touch_nobody(rig: Rig) -> None:
    rig.settings["TASKGATE_HANDLERS"] = HANDLERS
    await rig.worker()
    await rig.gateway()
    ids = {name: await rig.submit("raises_oddly", name) for name in ERRORS}
    echo = await rig.submit("echo", "well")

    for name, task_id in ids.items():
        task = await rig.ended(task_id, within_s=60)
        told = task["error"]
        assert (task["status"], told["kind"]) == ("failed", "exception"), name
        assert told["type"].rpartition(".")[2] == name
        assert told["message"]
        assert len(told["message"]) < MESSAGE_CHARS + 100
        assert not set(told["message"]) & {"\x00", "\x1b", "\ud800"}
        stream = await _stream(rig.http, task_id)
        assert json.loads(stream["end"])["error"]["type"] == told["type"]
    listed = (await rig.http.get("/dead-letters", params={"queue": "default"})).json()
    assert {item["id"] for item in listed["items"]} >= set(ids.values())
    assert (await rig.ended(echo))["status"] == "succeeded"


async def _stream(http: httpx.AsyncClient, task_id: str) -> dict[str, str]:
    """Data of its event stream, by name."""
    text = (await http.get(f"/tasks/{task_id}/events")).text
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\r\n\r\n") if block]
    return {block["event"]: block["data"] for block in blocks if "event" in block}

"""What no log line may hold, whatever happens: payloads, results, keys, tokens. And what those about a task do hold."""

import json
from typing import Any

import pytest

from tests.conftest import eventually
from tests.processes import whole_lines
from tests.system.rig import Rig

KEY, PASSWORD, MARK = "hidden-api-key", "hidden-redis-password", "hidden"
"""Every secret of this test begins alike, so that one search finds them all."""

LOGS = ("gateway.log", "worker.log")
WHO = {"Authorization": f"Bearer {KEY}", "X-Request-ID": "mine-1"}


@pytest.mark.full
@pytest.mark.parametrize("log_format", ["json", "ecs", "console"])
async def test_no_payload_and_no_secret_is_logged(rig: Rig, log_format: str) -> None:
    await start(rig, TASKGATE_LOG_FORMAT=log_format, TASKGATE_LOG_LEVEL="debug", TASKGATE_ACCESS_LOG="true")
    await provoke(rig)

    async def text() -> str:
        return logs(rig)

    said = await eventually(text, lambda found: found.count("attempt finished") >= 6, within_s=30)
    assert MARK not in said, [line for line in said.splitlines() if MARK in line][:5]


async def test_lines_about_a_task_have_its_tenant_its_request_and_its_attempt(rig: Rig) -> None:
    await start(rig, TASKGATE_ACCESS_LOG="true")
    task_id = await submit(rig, "raises")
    await rig.ended(task_id)

    async def lines() -> list[dict[str, Any]]:
        said = [line for name in LOGS for line in whole_lines(rig.folder / name)]
        return [line for line in map(json.loads, said) if line.get("task_id") == task_id]

    about = await eventually(
        lines, lambda found: {"request", "attempt finished"} <= {one["message"] for one in found}, within_s=30
    )
    submitted = next(line for line in about if line["message"] == "request" and line["method"] == "POST")
    finished = next(line for line in about if line["message"] == "attempt finished")
    for line in (submitted, finished):
        assert (line["tenant"], line["request_id"]) == ("default", "mine-1")
    assert (finished["attempt"], finished["outcome"], finished["error_kind"]) == (1, "failed", "exception")


async def start(rig: Rig, **settings: str) -> None:
    """With a password to Redis that is worth hiding, and a key."""
    await rig.redis.acl_setuser(
        "service", enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], channels=["*"], commands=["+@all"]
    )
    rig.settings |= {
        "TASKGATE_REDIS_URL": rig.server.url.replace("unix://", f"unix://service:{PASSWORD}@"),
        "TASKGATE_API_KEY": KEY,
        "TASKGATE_HANDLERS": "tests.system.secret_jobs",
        **settings,
    }
    rig.http.headers.update(WHO)
    await rig.worker()
    await rig.gateway()


def logs(rig: Rig) -> str:
    return "".join((rig.folder / name).read_text() for name in LOGS)


async def submit(rig: Rig, task_type: str) -> str:
    return await rig.submit(task_type, {"text": "hidden-payload"}, metadata={"a": "hidden-metadata"})


async def provoke(rig: Rig) -> None:
    """Everything that comes to mind."""
    http = rig.http
    secrets = {"Cookie": "hidden-cookie", "Idempotency-Key": "hidden-idempotency", "Prefer": "wait=1"}
    told = {"type": "tells", "payload": {"text": "hidden-payload"}, "unique_key": "hidden-unique"}
    answer = await eventually(
        lambda: http.post("/tasks", json=told, headers=secrets), lambda answer: answer.status_code != 503
    )
    assert (await rig.ended(answer.json()["id"]))["status"] == "succeeded"
    ended = [await submit(rig, each) for each in ("tells.async", "raises", "dies", "hangs")]
    for task_id in ended:
        await rig.ended(task_id)
        for path in ("", "/result", "/events", "/logs", "/stack"):
            await http.get(f"/tasks/{task_id}{path}?token=hidden-token&fields=hidden&last_event_id=hidden")
        await http.post(f"/tasks/{task_id}/redrive")
    cut, unknown, wrong = (
        '{"type": "tells", "payload": {"text": "hidden',
        '{"hidden": 1}',
        '{"type":"tells","payload":"hidden"}',
    )
    for body in (cut, unknown, wrong):
        await http.post("/tasks", content=body, headers={"Content-Type": "application/json"} | secrets)
    await http.post("/tasks", json={"type": "tells", "payload": {"text": "x", "number": "hidden-number"}})
    for key in ("Bearer hidden-wrong-key", "Basic aGlkZGVu", "hidden"):
        assert (await http.get("/tasks", headers={"Authorization": key})).status_code == 401
    await http.get("/tasks", params={"cursor": "hidden-cursor", "metadata": "hidden"})
    await rig.redis.client_kill_filter(_type="normal", skipme=True)
    last = await submit(rig, "raises")
    await rig.ended(last)

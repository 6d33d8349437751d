"""A backup taken under load as docs/operations.md says, and what comes of it in a new server."""

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import redis

from tests.conftest import Server, eventually, server_of
from tests.system.rig import FINAL, ROOT, Rig, serving

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

SETTINGS = {
    "TASKGATE_HANDLERS": "tests.system.jobs,tests.system.sizing_jobs",
    "TASKGATE_WORKER_PROCESSES": "1",
    "TASKGATE_LEASE_S": "3",
}
WAITING = 20


def backup(server: Server, target: Path) -> None:
    command = [
        str(ROOT / "deploy/backup/backup.sh"),
        str(server.folder),
        str(target),
        "-s",
        f"{server.folder}/redis.sock",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done


def restore(taken: Path, data: Path) -> None:
    """Runs the commands of the page."""
    page = (ROOT / "docs/operations.md").read_text()
    [commands] = re.findall(r"```sh\n([^`]*\$DATA[^`]*)```", page)
    places = os.environ | {"BACKUP": str(taken), "DATA": str(data), "OWNER": str(os.getuid())}
    subprocess.run(["bash", "-euc", commands], env=places, check=True)


async def accepted(rig: Rig, task_type: str, payload: object, **fields: str) -> str:
    """Whatever else is answered meanwhile: a machine that is busy may keep Redis silent for seconds."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            answer = await rig.http.post("/tasks", json={"type": task_type, "payload": payload, **fields})
            if answer.status_code == 202:
                return str(answer.json()["id"])
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def load(rig: Rig) -> AsyncIterator[list[str]]:
    """Short tasks, one after the other; ids of those accepted."""
    ids: list[str] = []

    async def submit() -> None:
        while True:
            ids.append(await accepted(rig, "cpu", {"ms": 1}))

    submitting = asyncio.ensure_future(submit())
    yield ids
    submitting.cancel()
    await asyncio.gather(submitting, return_exceptions=True)


async def enough(ids: list[str]) -> list[str]:
    """Once there are some."""

    async def found() -> list[str]:
        return list(ids)

    return await eventually(found, lambda some: len(some) >= WAITING, within_s=60)


async def all_succeed(rig: Rig, ids: list[str]) -> None:
    async def left() -> list[str]:
        return [f"{one and one.id}" for one in await rig.store.read(ids) if one is None or one.status not in FINAL]

    await eventually(left, lambda found: not found, within_s=120, every_s=0.2)
    assert [(one.id, one.status) for one in await rig.store.read(ids) if one] == [(each, "succeeded") for each in ids]


@pytest.mark.parametrize("server_name", ["valkey", "redis-server"])
async def test_what_was_accepted_before_a_backup_is_in_it_and_what_runs_is_not_disturbed(
    own_server: Server, server_name: str, tmp_path: Path
) -> None:
    taken = tmp_path / "backup"
    serves = SETTINGS | {"DATABASE": own_server.url, "TASKGATE_QUEUES": "default"}
    async with serving(own_server, tmp_path, **serves) as rig:
        running = await accepted(rig, "holds.async", None)
        await rig.running(running, within_s=60)
        waiting = [await accepted(rig, "cpu", {"ms": 1}, queue="later") for _ in range(WAITING)]
        async with load(rig) as ids:
            before = await enough(ids)
            await asyncio.to_thread(backup, own_server, taken)
            after = await accepted(rig, "cpu", {"ms": 1})
        assert (await rig.redis.config_get("auto-aof-rewrite-percentage"))["auto-aof-rewrite-percentage"] == "100"
        await rig.redis.rpush("go", 1)
        await all_succeed(rig, [running, after, *ids])

    (tmp_path / "restored").mkdir()
    with server_of(server_name) as restored:
        restored.stop()
        restore(taken, restored.folder)
        restored.start("--appendonly", "yes", "--appendfsync", "always")
        with redis.Redis.from_url(restored.url) as client:
            order = client.zrange("tg:{0}:ready:later:cpu:default", 0, -1)
            assert [each.decode() for each in order] == waiting
            client.rpush("go", *range(9))
        serves |= {"DATABASE": restored.url, "TASKGATE_QUEUES": "default,later"}
        async with serving(restored, tmp_path / "restored", **serves) as rig:
            await all_succeed(rig, [running, *waiting, *before])
            assert (await rig.task(running))["attempt"] > 1

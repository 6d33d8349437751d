"""A backup taken under load as docs/operations.md says, and what comes of it in a new server."""

import asyncio
import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from tests.conftest import Server, eventually, server_of
from tests.system.rig import FINAL, ROOT, Rig, serving

pytestmark = pytest.mark.full

SETTINGS = {
    "TASKGATE_HANDLERS": "tests.system.jobs,tests.system.sizing_jobs",
    "TASKGATE_WORKER_PROCESSES": "1",
    "TASKGATE_LEASE_S": "1",
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
    [commands] = re.findall(r"```sh\n([^`]*\$BACKUP[^`]*)```", page, re.DOTALL)
    places = os.environ | {"BACKUP": str(taken), "DATA": str(data), "OWNER": str(os.getuid())}
    subprocess.run(["bash", "-euc", commands], env=places, check=True)


@contextlib.asynccontextmanager
async def load(rig: Rig) -> AsyncIterator[list[str]]:
    """Short tasks, one after the other; ids of those accepted."""
    ids: list[str] = []

    async def submit() -> None:
        while True:
            ids.append(await rig.submit("cpu", {"ms": 1}))

    submitting = asyncio.ensure_future(submit())
    yield ids
    submitting.cancel()
    await asyncio.gather(submitting, return_exceptions=True)


async def enough(ids: list[str]) -> list[str]:
    """Once there are some."""

    async def found() -> list[str]:
        return list(ids)

    return await eventually(found, lambda some: len(some) >= WAITING, within_s=60)


async def all_end(rig: Rig, ids: list[str], *, at: dict[str, int]) -> None:
    """Well, each, in the attempt said for it, or in the first."""

    async def left() -> list[str]:
        return [
            one.id if one else "gone" for one in await rig.store.read(ids) if one is None or one.status not in FINAL
        ]

    await eventually(left, lambda found: not found, within_s=60, every_s=0.2)
    ends = {one.id: (one.status, one.attempt) for one in await rig.store.read(ids) if one}
    assert ends == {each: ("succeeded", at.get(each, 1)) for each in ids}


@pytest.mark.parametrize("server_name", ["valkey", "redis-server"])
async def test_what_was_accepted_before_a_backup_is_in_it_and_what_runs_is_not_disturbed(
    own_server: Server, server_name: str, tmp_path: Path
) -> None:
    taken = Path(tempfile.mkdtemp(prefix="tg-")) / "backup"
    serves = SETTINGS | {"DATABASE": own_server.url, "TASKGATE_QUEUES": "default"}
    async with serving(own_server, tmp_path, **serves) as rig:
        running = await rig.submit("holds.async", None)
        await rig.running(running)
        waiting = [await rig.submit("cpu", {"ms": 1}, queue="later") for _ in range(WAITING)]
        async with load(rig) as ids:
            before = await enough(ids)
            await asyncio.to_thread(backup, own_server, taken)
            after = await rig.submit("cpu", {"ms": 1})
        assert (await rig.redis.config_get("auto-aof-rewrite-percentage"))["auto-aof-rewrite-percentage"] == "100"
        await rig.redis.set("go", 1)
        await all_end(rig, [running, after, *ids], at={})

    (tmp_path / "restored").mkdir()
    with server_of(server_name) as restored:
        restored.stop()
        restore(taken, restored.folder)
        restored.start("--appendonly", "yes", "--appendfsync", "always")
        with redis.Redis.from_url(restored.url) as client:
            client.set("go", 1)
        serves |= {"DATABASE": restored.url, "TASKGATE_QUEUES": "default,later"}
        async with serving(restored, tmp_path / "restored", **serves) as rig:
            accepted = [running, *waiting, *before]
            assert [record.id for record in await rig.store.read(accepted) if record] == accepted
            await all_end(rig, accepted, at={running: 2})
            order = [run.task_id for run in sorted(rig.runs(), key=lambda run: run.start)]
            assert [each for each in order if each in waiting] == waiting

"""Both clients against a real service, over links on which every connection breaks in some way."""

import asyncio
import os
import random
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from taskgate import AsyncClient, Client
from taskgate.client import StillRunning, TaskFailed
from tests.conftest import Server
from tests.system.faulty_link import FaultyLink, faulty_link
from tests.system.rig import ROOT, Rig, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNTS = [
    pytest.param(4, id="short"),
    pytest.param(200, id="full", marks=[pytest.mark.full, pytest.mark.timeout(300)]),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(module_server: Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """One for all tests here: they look only at tasks of their own."""
    handlers = "tests.system.jobs,workers.handlers"
    async with serving(module_server, tmp_path_factory.mktemp("service"), TASKGATE_HANDLERS=handlers) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="module")
async def link(service: Rig) -> AsyncIterator[FaultyLink]:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    async with faulty_link(service.port, seed=seed) as made:
        yield made


@pytest.mark.parametrize("count", COUNTS)
async def test_threads_that_share_a_client_submit_each_task_once(service: Rig, link: FaultyLink, count: int) -> None:
    before = await created(service)

    def submit_and_wait(n: int) -> str:
        task = client.submit("cpu", {"ms": 1}, metadata={"n": n})
        ended = client.wait(task["id"], timeout_s=60) if n % 2 else client.wait(task["id"])
        assert ended["status"] == "succeeded"
        return task["id"]

    with Client(link.url, patience_s=90, timeout_s=5) as client:
        ids = await asyncio.gather(*(asyncio.to_thread(submit_and_wait, n) for n in range(count)))
    assert len(set(ids)) == count
    assert await created(service) - before == count
    assert sum(link.faults.values()) >= count // 4


@pytest.mark.parametrize("count", COUNTS)
async def test_tasks_on_a_loop_are_submitted_once_and_waited_for(service: Rig, link: FaultyLink, count: int) -> None:
    before = await created(service)

    async def submit_and_wait(n: int) -> str:
        task = await client.submit("wait", {"ms": 20})
        ended = await (client.wait(task["id"], timeout_s=60) if n % 2 else client.wait(task["id"]))
        assert ended["status"] == "succeeded"
        return task["id"]

    async with AsyncClient(link.url, patience_s=90, timeout_s=5) as client:
        ids = await asyncio.gather(*map(submit_and_wait, range(count)))
    assert len(set(ids)) == count
    assert await created(service) - before == count


@pytest.mark.parametrize(
    "count", [pytest.param(1, id="one stream"), pytest.param(3, id="one stream for several", marks=pytest.mark.full)]
)
async def test_events_are_those_that_the_service_has_kept(service: Rig, link: FaultyLink, count: int) -> None:
    link.longest = 16_000
    async with AsyncClient(link.url, patience_s=60) as client, AsyncClient(service.url) as direct:
        ids = [(await direct.submit("tells", {"n": 12}))["id"] for _ in range(count)]
        found = [event async for event in client.events(*ids)]
    for task_id in ids:
        mine = [event for event in found if event.task_id == task_id]
        assert [event.data["data"]["n"] for event in mine if event.name == "custom"] == list(range(12))
        assert [event.name for event in mine].count("end") == 1
        assert mine[-1].data["status"] == "succeeded"
        assert not [event for event in mine if event.name == "gap"]


@pytest.mark.full
async def test_a_watch_goes_forward_only_and_ends(service: Rig, link: FaultyLink) -> None:
    async with AsyncClient(link.url, patience_s=60) as client, AsyncClient(service.url) as direct:
        ids = [(await direct.submit("sleeper", {"ms": 500}))["id"] for _ in range(2)]
        seen: dict[str, list[Any]] = {task_id: [] for task_id in ids}
        async for task in client.watch(*ids):
            seen[task["id"]].append(task)
    for states in seen.values():
        versions = [task["version"] for task in states]
        assert versions == sorted(versions)
        assert states[-1]["status"] == "succeeded"


async def test_a_real_service_in_both_clients_words(service: Rig) -> None:
    def blocking() -> None:
        with Client(service.url) as client:
            task = client.submit("cpu", {"ms": 1}, metadata={"for": "blocking"})
            ended = client.wait(task["id"], timeout_s=30, check=True)
            assert client.get(task["id"])["status"] == ended["status"] == "succeeded"
            assert client.result(task["id"]) > 0
            failed = client.submit("fails", {})
            with pytest.raises(TaskFailed, match="as asked"):
                client.wait(failed["id"], check=True)
            assert failed["id"] in [one["id"] for one in client.dead_letters().items]
            assert client.redrive(failed["id"])["status"] in ("queued", "running", "failed")

    await asyncio.to_thread(blocking)
    async with AsyncClient(service.url) as client:
        task = await client.submit("sleeper", {"ms": 60_000})
        with pytest.raises(StillRunning):
            await client.wait(task["id"], timeout_s=0.5)
        assert (await client.cancel(task["id"]))["status"] in ("canceling", "canceled")
        assert (await client.wait(task["id"], timeout_s=30))["status"] == "canceled"
        held = await client.submit("cpu", {"ms": 1}, prefer_wait_s=30)
        assert held["status"] == "succeeded"


async def test_the_code_of_the_documentation_runs(service: Rig) -> None:
    """On one namespace, block after block, as a reader would."""

    def run() -> None:
        namespace: dict[str, Any] = {}
        for block in blocks():
            exec(compile(block.replace("http://127.0.0.1:8080", service.url), "docs/client.md", "exec"), namespace)

    await asyncio.to_thread(run)


@pytest.mark.full
async def test_a_users_code_is_typed(tmp_path: Path) -> None:
    """Strictly, with what the page does and what it must not."""
    (tmp_path / "right.py").write_text("\n".join(blocks()))
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", "right.py", "wrong.py"]
    checking = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, stdout=PIPE
    )
    out, _ = await checking.communicate()
    lines = [line for line in out.decode().splitlines() if ": error: " in line]
    expected = [n for n, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")]
    assert [line.split(":")[:2] for line in lines] == [["wrong.py", str(n)] for n in expected], out.decode()


WRONG = """
from taskgate import AsyncClient, Client

client = Client("http://127.0.0.1:8080", patience="long")  # wrong
client.submit("t", {}, priority="high")  # wrong
client.submit("t", {}, colour="red")  # wrong
client.list(status=1)  # wrong
n: int = client.wait("id", timeout_s=1)  # wrong
s: str = client.get("id")["status"]
for event in client.events("id"):
    s = event.data  # wrong


async def main() -> None:
    client = AsyncClient()
    s: str = client.wait("id")["status"]  # wrong
    s = (await client.wait("id"))["status"]
    async for task in client.watch("id"):
        s = task["status"]
"""


def blocks() -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) == 7
    return list(found)


async def created(service: Rig) -> int:
    """How many tasks there are."""
    return int(await service.redis.zcard("tg:{0}:all:default"))

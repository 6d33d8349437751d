"""The supervisor's own port: whether it lives and works, and what it counts."""

import asyncio
import json
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.conftest import eventually
from tests.system.rig import Rig


async def port_of(folder: Path) -> str:
    """Where the supervisor said that it listens."""

    async def found() -> str:
        said = re.search(
            r'"worker health listens".*?"url":"([^"]+)"|"url":"([^"]+)".*?"worker health listens"', _log(folder)
        )
        return "" if said is None else str(said[1] or said[2])

    return await eventually(found, bool, within_s=60)


def _log(folder: Path) -> str:
    return (folder / "worker.log").read_text()


async def answered(http: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    """Once it is answered so."""

    async def answer() -> httpx.Response:
        return await http.get(path)

    return await eventually(answer, lambda answer: answer.status_code == status, within_s=60)


async def test_a_supervisor_that_redis_does_not_answer_is_not_ready_and_lives(rig: Rig) -> None:
    process = await rig.worker(TASKGATE_WORKER_HEALTH_PORT="0", TASKGATE_LEASE_S="1")
    async with httpx.AsyncClient(base_url=await port_of(rig.folder), trust_env=False, timeout=30) as http:
        await answered(http, "/readyz", 200)
        rig.server.stop()
        said = (await answered(http, "/readyz?verbose", 503)).text
        assert re.search(r"\[-\]consuming failed: (Redis does not answer|the lease does not hold)\n", said), said
        assert (await http.get("/livez")).status_code == 200
        found = (await http.get("/metrics")).text
        assert "taskgate_consuming 0" in found
        rig.server.start("--appendonly", "yes")
        await answered(http, "/readyz", 200)
    process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("command", ["worker", "gateway"])
async def test_an_address_that_is_taken_is_exit_code_2(rig: Rig, command: str) -> None:
    """To start it again does not help."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = rig.spawn(command, TASKGATE_WORKER_HEALTH_PORT=port, TASKGATE_PORT=port)
        assert await asyncio.to_thread(process.wait, 60) == 2
    assert f"127.0.0.1:{port}: Address already in use" in (rig.folder / f"{command}.log").read_text()


async def test_a_supervisor_tells_whether_it_works_until_it_drains_and_ends_with_0(rig: Rig) -> None:
    process = await rig.worker(TASKGATE_WORKER_HEALTH_PORT="0", TASKGATE_GRACE_S="60")
    await rig.gateway()
    task = await rig.submit("wait", {"ms": 60_000})
    await rig.running(task, within_s=60)
    async with httpx.AsyncClient(base_url=await port_of(rig.folder), trust_env=False, timeout=30) as http:
        assert (await http.get("/livez")).text == "ok\n"
        checks = json.loads((await answered(http, "/readyz", 200)).text)["checks"]
        assert checks.keys() == {"consuming", "beat", "guard", "children"}
        verbose = (await answered(http, "/readyz?verbose", 200)).text
        assert "[+]guard ok: alive\n" in verbose
        assert verbose.endswith("readyz check passed\n")
        process.send_signal(signal.SIGTERM)

        async def said() -> str:
            return (await http.get("/readyz?verbose")).text

        await eventually(said, lambda said: "[-]consuming failed: draining" in said, within_s=60)
        silent = socket.create_connection((http.base_url.host, http.base_url.port or 0))  # it delays nothing
        process.send_signal(signal.SIGTERM)
    with silent:
        assert await asyncio.to_thread(process.wait, 60) == 0
    assert '"level":"error"' not in (rig.folder / "worker.log").read_text()

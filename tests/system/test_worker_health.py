"""The supervisor's own port: whether it lives and works, and what it counts."""

import json
import re
import signal
from pathlib import Path

import httpx

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


async def test_a_supervisor_tells_whether_it_works_and_stops_saying_so_when_it_drains(rig: Rig) -> None:
    await rig.worker(TASKGATE_WORKER_HEALTH_PORT="0")
    async with httpx.AsyncClient(base_url=await port_of(rig.folder), trust_env=False) as http:
        assert (await http.get("/livez")).text == "ok\n"
        checks = json.loads((await answered(http, "/readyz", 200)).text)["checks"]
        assert checks.keys() == {"consuming", "beat", "guard", "children"}
        verbose = (await answered(http, "/readyz?verbose", 200)).text
        assert "[+]guard ok: alive\n" in verbose
        assert verbose.endswith("readyz check passed\n")
        assert (await http.get("/other")).status_code == 404
        assert (await http.post("/livez")).status_code == 405


async def test_a_supervisor_that_redis_does_not_answer_is_not_ready_and_lives(rig: Rig) -> None:
    process = await rig.worker(TASKGATE_WORKER_HEALTH_PORT="0", TASKGATE_LEASE_S="1")
    async with httpx.AsyncClient(base_url=await port_of(rig.folder), trust_env=False) as http:
        await answered(http, "/readyz", 200)
        rig.server.stop()
        said = (await answered(http, "/readyz?verbose", 503)).text
        assert "[-]" in said
        assert (await http.get("/livez")).status_code == 200
        found = (await http.get("/metrics")).text
        assert "taskgate_consuming 0" in found
        rig.server.start("--appendonly", "yes")
        await answered(http, "/readyz", 200)
    process.send_signal(signal.SIGTERM)


async def test_metrics_need_the_key_where_there_is_one_and_probes_do_not(rig: Rig) -> None:
    rig.settings["TASKGATE_API_KEY"] = "secret"
    await rig.worker(TASKGATE_WORKER_HEALTH_PORT="0")
    async with httpx.AsyncClient(base_url=await port_of(rig.folder), trust_env=False) as http:
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers={"Authorization": "Bearer wrong"})).status_code == 401
        answer = await http.get("/metrics", headers={"Authorization": "Bearer secret"})
        assert answer.status_code == 200
        assert "taskgate_guard_up 1" in answer.text

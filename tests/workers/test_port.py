"""What the supervisor's port answers, and to whom."""

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from taskgate.checks import Check
from taskgate.settings import load
from workers.port import MAX_HEAD_BYTES, Port

CHECKS = {"beat": Check(True, "answered"), "guard": Check(False, "down")}


@pytest.fixture
async def port_of() -> AsyncIterator[Callable[..., str]]:
    """A port with these settings; its address."""
    running: list[asyncio.Task[None]] = []

    def start(**options: object) -> str:
        port = Port(load({}, worker_health_port=0, **options), checks=lambda: CHECKS, metrics=lambda: b"some 1\n")
        running.append(asyncio.create_task(port.run()))
        return f"http://127.0.0.1:{port.address[1]}"

    yield start
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_one_check_that_fails_is_a_503_and_each_is_told(port_of: Callable[..., str]) -> None:
    async with httpx.AsyncClient(base_url=port_of(), trust_env=False) as http:
        said = await http.get("/readyz")
        assert (said.status_code, said.json()["checks"]["guard"]) == (503, {"ok": False, "detail": "down"})
        lines = (await http.get("/readyz?verbose")).text.splitlines()
        assert lines == ["[+]beat ok: answered", "[-]guard failed: down", "readyz check failed"]
        assert (await http.get("/livez")).status_code == 200


async def test_numbers_are_for_whoever_has_the_key_and_probes_for_all(port_of: Callable[..., str]) -> None:
    async with httpx.AsyncClient(base_url=port_of(api_key="secret"), trust_env=False) as http:
        assert (await http.get("/livez")).status_code == 200
        refused = await http.get("/metrics")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="taskgate"')
        for wrong in ("Bearer wrong", "Bearer", "Basic secret", "secret"):
            assert (await http.get("/metrics", headers={"Authorization": wrong})).status_code == 401
        assert (await http.get("/metrics", headers={"Authorization": "Bearer secret"})).text == "some 1\n"


async def test_what_is_no_request_for_it_is_refused(port_of: Callable[..., str]) -> None:
    url = port_of()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        assert (await http.get("/tasks")).status_code == 404
        assert (await http.post("/livez")).status_code == 405
        head = await http.head("/livez")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "3")
    for sent in (b"nonsense\r\n\r\n", b"GET /livez HTTP/1.1\r\nx: " + b"y" * MAX_HEAD_BYTES * 2):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(sent)
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()

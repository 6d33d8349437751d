"""What the supervisor's port answers, and to whom."""

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from taskgate.checks import Check
from taskgate.settings import load
from workers.port import MAX_HEAD_BYTES, MOST, Port

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


@pytest.mark.parametrize("query", ["verbose", "verbose=1", "a=1&verbose", "verbose&a"])
async def test_lines_are_for_whoever_asks_for_them(port_of: Callable[..., str], query: str) -> None:
    async with httpx.AsyncClient(base_url=port_of(), trust_env=False) as http:
        assert (await http.get(f"/readyz?{query}")).text.startswith("[+]")


@pytest.mark.parametrize("query", ["verbosely", "a=verbose", ""])
async def test_others_are_told_for_programs(port_of: Callable[..., str], query: str) -> None:
    async with httpx.AsyncClient(base_url=port_of(), trust_env=False) as http:
        assert (await http.get(f"/readyz?{query}")).json()["status"] == "not ready"


async def test_numbers_are_for_whoever_has_the_key_and_probes_for_all(port_of: Callable[..., str]) -> None:
    async with httpx.AsyncClient(base_url=port_of(api_key="secret"), trust_env=False) as http:
        assert (await http.get("/livez")).status_code == 200
        refused = await http.get("/metrics")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="taskgate"')
        for wrong in ("Bearer wrong", "Bearer", "Basic secret", "secret"):
            assert (await http.get("/metrics", headers={"Authorization": wrong})).status_code == 401
        assert (await http.get("/metrics", headers={"Authorization": "Bearer secret"})).text == "some 1\n"


async def sent(url: str, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(request)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_another_protocol_is_offered_in_vain_and_the_request_is_answered(port_of: Callable[..., str]) -> None:
    """As `curl --http2` does."""
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n"
    assert (await sent(port_of(), b"GET /livez HTTP/1.1\r\n" + upgrade)).startswith(b"HTTP/1.1 200 ")
    assert (await sent(port_of(), b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n")).startswith(b"HTTP/1.1 405 ")


async def test_whoever_connects_and_asks_nothing_keeps_nobody_out(port_of: Callable[..., str]) -> None:
    url = port_of()
    silent = [await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])) for _ in range(MOST)]
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        assert (await http.get("/livez")).status_code == 200
    assert await silent[0][0].read() == b"", "the oldest goes"
    assert not any(reader.at_eof() for reader, _ in silent[2:])
    for _, writer in silent:
        writer.close()


async def test_what_is_no_request_for_it_is_refused(port_of: Callable[..., str]) -> None:
    url = port_of()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        assert (await http.get("/tasks")).status_code == 404
        assert (await http.post("/livez")).status_code == 405
        head = await http.head("/livez")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "3")
    for wrong in (b"nonsense\r\n\r\n", b"\r\n\r\n", b"GET /livez HTTP/1.1\r\nx: " + b"y" * MAX_HEAD_BYTES * 2):
        assert (await sent(url, wrong)).startswith(b"HTTP/1.1 400 ")

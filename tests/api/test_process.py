"""The gateway as processes: start, port, stop, several of them."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable

import httpx
import pytest

from tests.api.conftest import ROOT, Served, Worker, submit
from tests.conftest import eventually
from tests.processes import cpu_s, free_port
from tests.system.rig import children_of, command_of, is_dead

Serve = Callable[..., Awaitable[Served]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_with_0_on_a_signal(serve: Serve, number: signal.Signals) -> None:
    served = await serve()
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        assert (await http.get("/livez")).status_code == 200
    served.process.send_signal(number)
    assert await served.ended() == 0


@pytest.mark.parametrize("trials", [2, pytest.param(30, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
async def test_signals_at_any_moment_of_its_start_and_stop_stop_it_cleanly(serve: Serve, trials: int) -> None:
    for _ in range(trials):
        served = await serve()
        for _ in range(3):
            await asyncio.sleep(random.choice([0, random.uniform(0, 0.05)]))
            served.process.terminate()
        assert await served.ended(within_s=60) == 0


async def test_several_processes_share_a_port_and_stop_together(serve: Serve, worker: Worker) -> None:
    served = await serve(gateway_processes=2)
    makers = set()

    async def answered_by() -> set[str]:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
            task = await submit(http)
            answer = await http.get(f"/tasks/{task['id']}", headers={"Cache-Control": "no-cache"})
            assert answer.status_code == 200
            makers.add(answer.headers["x-request-id"].split("-")[0])
        return makers

    await eventually(answered_by, lambda found: len(found) == 2, within_s=60, every_s=0)
    assert await served.stop() == 0


async def test_no_process_outlives_a_killed_parent(serve: Serve) -> None:
    served = await serve(gateway_processes=2)
    workers = await eventually(lambda: _serving(served.process.pid), lambda pids: len(pids) == 2, within_s=60)
    served.kill()

    async def left() -> list[int]:
        return [pid for pid in workers if not is_dead(pid)]

    await eventually(left, lambda pids: not pids, within_s=60)  # one that still starts sees it once it has


@pytest.mark.full
async def test_a_process_without_cpu_for_a_while_is_not_taken_for_a_hung_one(serve: Serve) -> None:
    served = await serve(gateway_processes=2)
    workers = await eventually(lambda: _serving(served.process.pid), lambda pids: len(pids) == 2, within_s=60)
    os.kill(workers[0], signal.SIGSTOP)
    await asyncio.sleep(7)  # uvicorn gives them 5
    assert await _serving(served.process.pid) == workers
    assert not is_dead(workers[0])
    os.kill(workers[0], signal.SIGCONT)
    assert await served.stop() == 0


async def _serving(pid: int) -> list[int]:
    return [child for child in children_of(pid) if "spawn_main" in command_of(child)]


async def test_no_submission_is_lost_while_it_stops(serve: Serve, worker: Worker) -> None:
    """Every 202 that was sent is in the store; what came too late was refused or cut off."""
    served = await serve()
    accepted: list[str] = []

    async def submit_on() -> None:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
            while True:
                answer = await http.post("/tasks", json={"type": "any", "payload": 1})
                if answer.status_code != 202:
                    assert answer.status_code == 503
                    return
                accepted.append(answer.json()["id"])

    submitters = [asyncio.ensure_future(submit_on()) for _ in range(8)]

    async def count() -> int:
        return len(accepted)

    await eventually(count, lambda found: found >= 50, within_s=60)
    assert await served.stop() == 0
    ends = await asyncio.gather(*submitters, return_exceptions=True)
    assert all(end is None or isinstance(end, httpx.TransportError) for end in ends)
    assert None not in [
        record
        for start in range(0, len(accepted), 100)
        for record in await worker.store.read(accepted[start : start + 100])
    ]


@pytest.mark.full
async def test_large_bodies_leave_room_for_probes(serve: Serve, worker: Worker) -> None:
    """F04: ten bodies just under the limit at once; a probe never waits for long work."""
    served = await serve()
    payload = [{"n": number, "text": "x" * 20} for number in range(22_000)]
    waits: list[float] = []
    """CPU time of the gateway: a machine that is busy otherwise gives it none for a while."""
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        await http.get("/livez")
        body = httpx.Request("POST", "/", json={"type": "any", "payload": payload}).content
        assert 900_000 < len(body) < 1024**2

        async def post() -> int:
            return (await http.post("/tasks", content=body, headers={"content-type": "application/json"})).status_code

        posts = asyncio.gather(*(post() for _ in range(10)))
        while not posts.done():
            before = cpu_s(served.process.pid)
            assert (await http.get("/livez")).status_code == 200
            waits.append(cpu_s(served.process.pid) - before)
            await asyncio.sleep(0.02)
        assert set(await posts) == {202}
    assert sorted(waits)[len(waits) * 99 // 100 - 1] < 1


async def test_an_endless_chunked_body_is_answered_and_cut(serve: Serve) -> None:
    """F04 on the wire: 413 once the limit is passed, then the connection ends."""
    served = await serve(max_body_bytes=100_000, before="import app.protocol; app.protocol.LINGER_S = 60")
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    sent = 0
    answer = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
    try:
        while sent < 50_000_000:
            writer.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
            sent += 10_000
            await asyncio.wait_for(writer.drain(), 5)
            await asyncio.sleep(0)
            if answer.done():
                break
    except (ConnectionError, TimeoutError):
        pass
    assert (await asyncio.wait_for(answer, 30)).startswith(b"HTTP/1.1 413 ")
    assert sent < 20_000_000
    writer.transport.abort()


def test_settings_that_cannot_work_are_told_in_a_line() -> None:
    """Before anything listens, whoever starts it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, line in (
            ({}, "TASKGATE_REDIS_URL: needed"),
            ({"redis_url": "http://secret@x"}, "TASKGATE_REDIS_URL: not a redis://"),
            ({"redis_url": "unix:///x", "port": port}, f"TASKGATE_HOST, TASKGATE_PORT: 127.0.0.1:{port}: "),
        ):
            code = f"from app.main import run; from taskgate.settings import load; run(load({{}}, **{options!r}))"
            ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
            assert ended.returncode == 1
            assert line in ended.stderr.splitlines()[-1]
            assert "secret" not in ended.stderr.splitlines()[-1]
            assert "gateway listens" not in ended.stderr


async def test_any_asgi_server_can_run_it(redis_url: str, worker: Worker) -> None:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "app.main:app", "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TASKGATE_REDIS_URL": redis_url})
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:

            async def ready() -> int:
                try:
                    return (await http.get("/readyz")).status_code
                except httpx.TransportError:
                    return 0

            await eventually(ready, lambda status: status == 200, within_s=60)
            await submit(http)
    finally:
        process.kill()
        process.wait()

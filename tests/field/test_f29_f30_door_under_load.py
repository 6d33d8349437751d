"""F29 and F30: a queue that is full, and clients that send slowly. The door stays quick for everybody else."""

import asyncio
import contextlib
import statistics
import time
from collections import Counter

import httpx
import pytest

from tests.conftest import eventually
from tests.system.rig import FINAL, Rig

pytestmark = pytest.mark.full

LIMIT = 100
SPILL = 30
SUBMITS = 2_000
HEAD = b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def types_known(rig: Rig) -> None:
    """Let a supervisor tell its types, and go."""
    rig.settings["TASKGATE_HANDLERS"] = "tests.field.odd_results"
    worker = await rig.worker()
    await rig.gateway()
    assert (await rig.ended(await rig.submit("back", 1)))["status"] == "succeeded"  # so that the gateway knows them too
    worker.terminate()
    await eventually(lambda: asyncio.to_thread(worker.wait), lambda code: code == 0, within_s=30)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("on_full", ["refuse", "wait", "spill"])
async def test_f29_never_more_than_the_limit_and_quick_refusals(rig: Rig, on_full: str) -> None:
    """Through two gateways at once. Who waits does so for 50 ms: nobody works."""
    policy = rig.folder / "policy.toml"
    policy.write_text(f"""
        [queues.default]
        limit_tasks = {LIMIT}
        on_full = "{on_full}"
        wait_ms = 50
        spill_tasks = {SPILL}
    """)
    rig.settings["TASKGATE_POLICY_FILE"] = str(policy)
    await types_known(rig)
    other = f"http://127.0.0.1:{await rig.another_gateway()}"
    accepted: list[str] = []
    spilled: list[str] = []

    async def submit(http: httpx.AsyncClient, count: int) -> None:
        for _ in range(count):
            answer = await http.post("/tasks", json={"type": "back", "payload": 1})
            if answer.status_code == 202:
                (spilled if answer.json()["status"] == "failed" else accepted).append(answer.json()["id"])
                continue
            assert answer.status_code in (429, 503)
            assert int(answer.headers["retry-after"]) >= 1

    looks_s: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False, timeout=30))
            for url in (rig.url, other)
        ]
        everyone = asyncio.gather(*(submit(http, SUBMITS // 100) for http in clients for _ in range(50)))
        while not everyone.done():
            assert (await rig.store.usage(0)).get("waiting:queue:default", 0) <= LIMIT
            started = time.monotonic()
            assert (await rig.http.get("/livez")).status_code == 200
            looks_s.append(time.monotonic() - started)
            await asyncio.wait([everyone], timeout=0.02)
        await everyone
    usage = await rig.store.usage(0)
    assert usage["waiting:queue:default"] == LIMIT
    assert usage.get("spilled:queue:default", 0) == (SPILL if on_full == "spill" else 0)
    assert LIMIT - 20 < len(accepted) <= LIMIT  # on a machine so busy that a 202 came too late it is a 503
    assert len(spilled) <= usage.get("spilled:queue:default", 0)
    assert statistics.median(looks_s) < 5 * 0.2
    refusals_s = []
    for _ in range(20):
        started = time.monotonic()
        assert (await rig.http.post("/tasks", json={"type": "back", "payload": 1})).status_code == 429
        refusals_s.append(time.monotonic() - started)
        assert (await rig.http.get(f"/tasks/{accepted[0]}")).status_code == 200
    assert statistics.median(refusals_s) < 5 * 0.2
    await rig.worker()
    for task_id in accepted:
        assert (await rig.ended(task_id))["status"] == "succeeded"
    for task_id in spilled:
        assert (await rig.task(task_id))["error"]["kind"] == "overflow"
        assert (await rig.http.post(f"/tasks/{task_id}/redrive")).status_code == 202
        assert (await rig.ended(task_id))["status"] == "succeeded"
    assert (await rig.ended(await rig.submit("back", 1)))["status"] == "succeeded"


@pytest.mark.timeout(200)
async def test_f30_slow_senders_are_dropped_and_nobody_else_notices(rig: Rig) -> None:
    """The real deadlines: 500 that drip their head, 500 that drip a body, 200 that say nothing, 20 streams."""
    rig.settings["TASKGATE_HANDLERS"] = "tests.field.odd_results"
    await rig.worker()
    await rig.gateway()
    delayed = await rig.submit("back", 1, delay_s=300)
    before_s = await usual_s(rig)
    streams = [
        await opened(rig, b"GET /tasks/%s/events HTTP/1.1\r\nHost: x\r\n\r\n" % delayed.encode()) for _ in range(20)
    ]
    kinds = [HEAD + b"X-A: "] * 500 + [HEAD + b"Content-Length: 1000\r\n\r\n"] * 500 + [b""] * 200
    ends = asyncio.gather(*[dropped(await opened(rig, begun), silent=not begun) for begun in kinds])
    during_s = await usual_s(rig)
    statuses = Counter(status for status, _ in await ends)
    longest_s = max(took_s for _, took_s in await ends)
    assert statuses == {b"408": 1_000, b"": 200}
    assert longest_s < 5 * 30
    assert during_s < 5 * max(0.02, 2 * before_s)
    for reader, writer in streams:
        assert not reader.at_eof()
        writer.transport.abort()
    answer = await rig.http.post(f"/tasks/{delayed}/cancel")
    assert answer.json()["status"] in FINAL


Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(rig: Rig, data: bytes) -> Wire:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(data)
    return reader, writer


async def dropped(wire: Wire, *, silent: bool) -> tuple[bytes, float]:
    """The status of the answer, if any, and how long it took to come; a byte every 5 s meanwhile."""
    reader, writer = wire
    started = time.monotonic()
    line = asyncio.ensure_future(reader.readline())
    while not line.done():
        if not silent:
            writer.write(b"x")
        await asyncio.wait([line], timeout=5)
    writer.transport.abort()
    return b"".join((await line).split()[1:2]), time.monotonic() - started


async def usual_s(rig: Rig) -> float:
    """The median time of a submission and a look at it, for 20 clients."""
    times: list[float] = []
    body = {"type": "back", "payload": 1}

    async def client() -> None:
        for _ in range(10):
            started = time.monotonic()
            answer = await rig.http.post("/tasks", json=body)
            assert answer.status_code == 202
            assert (await rig.http.get(answer.headers["location"])).status_code == 200
            times.append(time.monotonic() - started)

    await asyncio.gather(*(client() for _ in range(20)))
    return statistics.median(times)

"""What polls cost Redis: few reads, and small ones."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import httpx
import pytest
from redis.asyncio import Redis

from app.door import Door
from taskgate.contract import ids
from taskgate.contract.errors import TaskNotFound
from taskgate.contract.models import TaskRecord
from taskgate.contract.states import Status
from tests.api.conftest import Served, Worker, client_of, submit

LARGE = "x" * 1_000_000
FRESH = {"Cache-Control": "no-cache"}


async def sent_bytes(redis: Redis) -> int:
    """By the server to all its clients; each call adds its own answer to what the next one says."""
    sent: int = (await redis.info("stats"))["total_net_output_bytes"]
    return sent


async def test_a_poll_of_a_large_task_moves_little(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis
) -> None:
    async with client_of(gateway_of()) as http:
        task = await submit(http, type="any", payload=LARGE, metadata={"key": "x" * 200})

        async def moved() -> int:
            await http.get(f"/tasks/{task['id']}", headers=FRESH)  # what estimates need is read now and then
            before, own = await sent_bytes(redis_client), await sent_bytes(redis_client)
            assert (await http.get(f"/tasks/{task['id']}", headers=FRESH)).status_code == 200
            return await sent_bytes(redis_client) - own - (own - before)

        assert 0 < await moved() < 2000
        [claimed] = await worker.claim()
        await worker.report(claimed, progress=b'{"current":1,"total":2}', effort=b'{"cpu_ms":12}', health="computing")
        assert 0 < await moved() < 2000
        await worker.finish(claimed, result=b'"%s"' % LARGE.encode())
        assert 0 < await moved() < 2000


async def poll(port: int, path: str, until: float) -> int:
    """As often as it can on one connection, but for a pause; how many answers it got."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = 0
    try:
        while time.monotonic() < until:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(length)
            answers += 1
            await asyncio.sleep(0.05)
    finally:
        writer.transport.abort()
    return answers


async def check_reads(redis: Redis, *, tasks: int, began: float, answers: int) -> None:
    took_s = time.monotonic() - began
    reads = (await redis.info("commandstats"))["cmdstat_hmget"]["calls"]
    per_gateway = tasks * (2 * took_s + 1) + (took_s / 2 + 2) * 2  # and the supervisors, now and then, for estimates
    assert reads <= 2 * per_gateway, f"{reads} reads in {took_s:.1f} s for {answers} answers"
    assert answers > per_gateway * 2


async def test_many_readers_cost_two_reads_a_task_and_second(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis
) -> None:
    doors = [gateway_of(), gateway_of()]
    async with client_of(doors[0]) as http:
        tasks = [(await submit(http))["id"] for _ in range(3)]
    assert len(await worker.claim(3)) == 3
    await redis_client.config_resetstat()
    began = time.monotonic()

    async def ask(door: Door, task_id: str) -> int:
        answers = 0
        while time.monotonic() < began + 1.1 or answers < 20:
            await door.gateway.snapshots.get(task_id, "default")
            answers += 1
            await asyncio.sleep(0.01)
        return answers

    answers = await asyncio.gather(*(ask(door, tasks[n % 3]) for door in doors for n in range(30)))
    await check_reads(redis_client, tasks=3, began=began, answers=sum(answers))


@pytest.mark.full
@pytest.mark.timeout(120)
async def test_a_thousand_clients_of_each_of_two_gateways_do_too(
    serve: Callable[..., Awaitable[Served]], worker: Worker, redis_client: Redis
) -> None:
    gateways = [await serve(), await serve()]
    ports = [each.port for each in gateways]
    async with httpx.AsyncClient(base_url=gateways[0].url, timeout=60) as http:
        paths = [f"/tasks/{(await submit(http))['id']}" for _ in range(10)]
    assert len(await worker.claim(10)) == 10
    await redis_client.config_resetstat()
    began = time.monotonic()
    polls = [poll(port, paths[n % 10], began + 8) for port in ports for n in range(1000)]
    answers = sum(await asyncio.gather(*polls))
    await check_reads(redis_client, tasks=10, began=began, answers=answers)


async def test_results_that_are_asked_for_together_are_read_together_each_with_its_own_outcome(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a connection for each, a crowd used up the pool: 503 for whoever waited there, on a busy machine."""
    door = gateway_of()
    async with client_of(door) as http:
        waiting = (await submit(http, type="any"))["id"]
        task_ids = [(await submit(http, type="echo", payload={"text": str(n)}))["id"] for n in range(20)]
        await door.gateway.store.cancel(waiting, tenant="default")
    ended: dict[str, bytes] = {}
    while len(ended) < len(task_ids):
        for claimed in await worker.claim():
            ended[claimed.id] = b'"%s"' % claimed.id.encode()
            await worker.finish(claimed, result=ended[claimed.id])
    real = door.gateway.store.read
    sizes: list[int] = []

    async def counted(asked: Sequence[str], *, result: bool = False) -> list[TaskRecord | None]:
        sizes.append(len(asked))
        return await real(asked, result=result)

    monkeypatch.setattr(door.gateway.store, "read", counted)
    unknown = ids.new_task_id()
    asked = [*task_ids, waiting, unknown]
    outcomes = await asyncio.gather(*map(door.gateway.snapshots.result, asked), return_exceptions=True)
    assert outcomes[:-1] == [*((Status.SUCCEEDED, ended[task_id]) for task_id in task_ids), (Status.CANCELED, b"")]
    assert isinstance(outcomes[-1], TaskNotFound)
    assert sizes == [16, 6]

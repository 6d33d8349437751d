"""F12: whoever polls, wherever, never sees a task go back; what is cancelled stays so."""

import asyncio
import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import httpx
import pytest

from app.door import Door
from tests.api.conftest import Worker, client_of
from tests.system.proxy import proxy
from tests.system.rig import FINAL, Rig

WAVE = 100
POLL_S = 0.1
"""400 clients poll at most so seldom: what carries the slow link lives in this process, too."""

Get = Callable[[str, str], Awaitable[tuple[bytes, str]]]
"""Path and known ETag ("" for none) -> body ("" when it has not changed) and ETag."""


class State(NamedTuple):
    version: int
    status: str


class Seen(NamedTuple):
    states: list[State]
    """Without repetitions."""
    ended_at: float


async def poll(gets: list[Get], task_id: str) -> Seen:
    """Until the end, through these gateways in turn; with several, by what the client has last seen."""
    seen: list[State] = []
    etag = ""
    n = 0
    while not seen or seen[-1].status not in FINAL:
        body, etag = await gets[n % len(gets)](f"/tasks/{task_id}", etag if len(gets) > 1 else "")
        n += 1
        if body:
            status, version = re.search(rb'"status":"(\w+)"', body), re.search(rb'"version":(\d+)', body)
            assert status is not None, body
            assert version is not None, body
            state = State(int(version[1]), status[1].decode())
            if not seen or seen[-1] != state:
                seen.append(state)
        await asyncio.sleep(random.uniform(0, POLL_S))
    ended_at = time.monotonic()
    for get in gets:
        body, _ = await get(f"/tasks/{task_id}", etag if len(gets) > 1 else "")
        assert not body or f'"status":"{seen[-1].status}"'.encode() in body, "an end is for ever"
    return Seen(seen, ended_at)


async def watch(task_id: str, clients: list[list[Get]]) -> str:
    """By several clients at once; the status in which all saw it end."""
    found = await asyncio.gather(*(poll(gets, task_id) for gets in clients))
    for seen in found:
        # By version: a task that is handed back, as a busy machine may want it, is queued again and newer than before.
        assert seen.states == sorted(seen.states, key=lambda state: state.version), (
            f"{task_id} went back: {seen.states}"
        )
        statuses = [state.status for state in seen.states]
        if "canceling" in statuses:
            assert set(statuses[statuses.index("canceling") + 1 :]) <= {"canceling", *FINAL}, "nor is a cancel undone"
    told = {state for seen in found for state in seen.states}
    assert len(told) == len({state.version for state in told}), f"one version with two statuses: {told}"
    [end] = {seen.states[-1].status for seen in found}
    times = [seen.ended_at for seen in found]
    assert max(times) - min(times) < 10, "everybody sees the end within a second, on a machine that is not busy"
    return end


def getter(http: httpx.AsyncClient) -> Get:
    async def get(path: str, etag: str) -> tuple[bytes, str]:
        answer = await http.get(path, headers={"If-None-Match": etag} if etag else {})
        assert answer.status_code in (200, 304), answer.text
        return answer.content, answer.headers["etag"]

    return get


async def test_no_poll_through_two_gateways_sees_a_task_go_back(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    """The short form: two gateways in this process, a worker that is slow to tell."""
    async with client_of(gateway_of()) as one, client_of(gateway_of()) as other:
        answers = [await one.post("/tasks", json={"type": "any", "payload": n}) for n in range(12)]
        tasks = [answer.json()["id"] for answer in answers]
        here, there = getter(one), getter(other)
        clients = [[here], [here], [there], [here, there]]
        watching = [asyncio.ensure_future(watch(task_id, clients)) for task_id in tasks]
        canceled = await asyncio.gather(*(other.post(f"/tasks/{task_id}/cancel") for task_id in tasks[::6]))
        assert [answer.status_code for answer in canceled] == [200, 200]
        for task in await worker.claim(20):
            if task.payload in (b"3", b"9"):
                assert (await other.post(f"/tasks/{task.id}/cancel")).status_code == 202
            await asyncio.sleep(0.05)
            await worker.finish(task, "canceled" if task.payload == b"3" else "succeeded")
        ends = await asyncio.gather(*watching)
    assert [tasks.index(task_id) for task_id, end in zip(tasks, ends, strict=True) if end == "canceled"] == [0, 3, 6]


class Connection:
    """One keep-alive connection: what a client costs here must not hide what the service does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def get(self, path: str, etag: str) -> tuple[bytes, str]:
        known = f"If-None-Match: {etag}\r\n" if etag else ""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{known}\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", head)
        body = await self._reader.readexactly(int(length[1])) if length and " 304 " not in head[:20] else b""
        assert head[9:12] in ("200", "304"), (head, body)
        found = re.search(r"etag: (\S+)", head)
        assert found is not None
        return body, found[1].upper()


@contextlib.asynccontextmanager
async def connections(port: int, count: int) -> AsyncIterator[list[Connection]]:
    links = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        yield [Connection(*link) for link in links]
    finally:
        for _, writer in links:
            writer.transport.abort()


async def cancel_sometime(http: httpx.AsyncClient, task_id: str) -> int:
    await asyncio.sleep(random.uniform(0, 1))
    answer = await http.post(f"/tasks/{task_id}/cancel")
    while answer.status_code == 503:  # its Redis took too long: as it asks, again
        answer = await http.post(f"/tasks/{task_id}/cancel")
    return answer.status_code


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_nor_with_1000_tasks_slow_writes_and_cancels_at_any_moment(rig: Rig) -> None:
    """What a supervisor and one of the two gateways ask of Redis takes 200 ms."""
    async with proxy(rig.server.folder / "redis.sock") as slow:
        slow.delay_s = 0.2
        port = await rig.another_gateway(TASKGATE_REDIS_URL=slow.url)
        await rig.worker(TASKGATE_REDIS_URL=slow.url)
        await rig.gateway()
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as other_http,
            connections(rig.port, 3 * WAVE) as one,
            connections(port, 2 * WAVE) as other,
        ):
            for _ in range(1000 // WAVE):
                await _wave(rig, other_http, one, other)


async def _wave(rig: Rig, other_http: httpx.AsyncClient, one: list[Connection], other: list[Connection]) -> None:
    tasks = await asyncio.gather(*(rig.submit("wait", {"ms": random.randint(5, 300)}) for _ in range(WAVE)))

    def follow(n: int) -> Awaitable[str]:
        here: list[Get] = [each.get for each in one[3 * n : 3 * n + 3]]
        there: list[Get] = [each.get for each in other[2 * n : 2 * n + 2]]
        return watch(tasks[n], [here[:1], here[1:2], there[:1], [here[2], there[1]]])

    asked = {task_id: asyncio.ensure_future(cancel_sometime(other_http, task_id)) for task_id in tasks[::3]}
    ends = dict(zip(tasks, await asyncio.gather(*map(follow, range(WAVE))), strict=True))
    runs = rig.runs()
    finished = {run.task_id for run in runs if run.end is not None}
    started = Counter(run.task_id for run in runs)
    for task_id, answer in asked.items():
        code = await answer
        wanted: dict[int, set[str]] = {200: {"canceled"}, 202: {"canceled", "succeeded"}, 409: {"succeeded"}}
        assert ends[task_id] in wanted[code], (code, ends[task_id])
        if started[task_id] < 2:  # else its first end may have come too late to count
            assert (ends[task_id] == "succeeded") == (task_id in finished)
    assert {ends[task_id] for task_id in tasks if task_id not in asked} == {"succeeded"}

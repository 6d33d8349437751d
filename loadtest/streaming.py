"""Thousands of open streams and the tasks that they follow: one process reads them, one tells the progress.

`python -m loadtest.streaming read URL`: task ids on standard input, one a line; says `open` when every stream has its
snapshot, and at a second line of input what came. `tell URL`: the progress of the tasks, at a steady rate.
"""

import argparse
import asyncio
import itertools
import json
import resource
import select
import socket
import sys
import time
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import Redis

from loadtest.stand_in import LEASE_MS, SERVED, worker_info
from taskgate.contract.models import Claimed, Held, Report
from taskgate.contract.store import Store

_TICK_S = 0.05
_STAMP = b'"current":'
_CONNECTS_AT_ONCE = 100


def read(url: str, task_ids: list[str], streams: int) -> None:
    """Open `streams` streams, in turns of the tasks; ages are milliseconds from before a report to its arrival here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    poll = select.epoll()
    connections: dict[int, socket.socket | _Input] = {}
    silent: set[int] = set()
    ages: list[float] = []
    blocks = closed = 0

    def receive(timeout_s: float) -> None:
        nonlocal blocks, closed
        for descriptor, _ in poll.poll(timeout_s, 4096):
            data = connections[descriptor].recv(1 << 16)
            now_ms = time.time() * 1000
            if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200 "):
                raise ConnectionError(f"a stream was refused: {data[:200]!r}")
            if not data:
                if descriptor in silent:
                    raise ConnectionError("a stream was closed before its snapshot")
                poll.unregister(descriptor)
                closed += 1
            if b"event: snapshot" in data:
                silent.discard(descriptor)
            blocks += data.count(b"event: progress")
            at = data.rfind(_STAMP)
            if at >= 0 and b"event: progress" in data:
                ages.append(now_ms - float(data[at + len(_STAMP) :].partition(b",")[0]))

    for task_id in itertools.islice(itertools.cycle(task_ids), streams):
        connection = _opened(url, task_id)
        connections[connection.fileno()] = connection
        silent.add(connection.fileno())
        poll.register(connection.fileno(), select.EPOLLIN)
        while len(silent) > _CONNECTS_AT_ONCE:
            receive(5)
    while silent:
        receive(5)
    print("open", flush=True)
    ages.clear()
    blocks = 0
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    connections[sys.stdin.fileno()] = _Input()
    while closed == 0:
        receive(1)
    ages.sort()
    print(
        json.dumps(
            {
                "blocks": blocks,
                "closed": closed - 1,
                "p50_ms": ages[len(ages) // 2] if ages else -1,
                "p99_ms": ages[int(len(ages) * 0.99)] if ages else -1,
                "worst_ms": ages[-1] if ages else -1,
            }
        )
    )


class _Input:
    """Standard input as one more connection: it ends the reading."""

    def recv(self, _: int) -> bytes:
        sys.stdin.readline()
        return b""


def _opened(url: str, task_id: str) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 80), timeout=30)
    connection.sendall(f"GET /tasks/{task_id}/events HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return connection


async def tell(url: str, *, tasks: int, per_s: float, seconds: float) -> None:
    """Claim that many tasks and report their progress in turns: `current` is the time, in milliseconds."""
    async with Redis.from_url(url, protocol=2) as redis:
        store = Store(redis)
        worker = worker_info()
        await store.beat(0, worker, held=[], served=SERVED)
        claimed: list[Claimed] = []
        while len(claimed) < tasks:
            claimed += await store.claim(
                0, worker.id, served=SERVED, free_sync=min(100, tasks - len(claimed)), free_async=0, lease_ms=LEASE_MS
            )
        print("claimed", flush=True)
        sys.stdin.readline()
        turns = itertools.cycle(claimed)
        started, told = time.monotonic(), 0
        while (passed := time.monotonic() - started) < seconds:
            batch = list(itertools.islice(turns, round(passed * per_s) - told))
            for n in range(0, len(batch), 50):
                await store.report(0, worker.id, [_report(task, told + k) for k, task in enumerate(batch[n : n + 50])])
                told += len(batch[n : n + 50])
            await asyncio.sleep(_TICK_S)
        await store.beat(0, worker, held=[Held(task.id, task.epoch) for task in claimed], served=SERVED)
        print(json.dumps({"told": told, "per_s": told / (time.monotonic() - started)}), flush=True)


def _report(task: Claimed, number: int) -> Report:
    now_ms = time.time() * 1000
    progress = {"current": round(now_ms, 1), "total": 2e12, "percent": 50.0, "stage": "measuring", "at_ms": int(now_ms)}
    return Report(id=task.id, epoch=task.epoch, number=number + 1, progress=msgspec.json.encode(progress))


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["read", "tell"])
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=5_000)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--per-s", type=float, default=1_000)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    if options.what == "read":
        ids = [sys.stdin.readline().strip() for _ in range(options.tasks)]
        read(options.url, ids, options.streams)
    else:
        asyncio.run(tell(options.url, tasks=options.tasks, per_s=options.per_s, seconds=options.seconds))


if __name__ == "__main__":
    _main()

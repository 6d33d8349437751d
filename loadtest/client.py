"""The load generator: HTTP/1.1 over kept-alive sockets in a process of its own, the same for every service.

Standard library only. Each connection sends its next request when it has its answer; there is no pipelining.
"""

import argparse
import json
import os
import re
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

NUMBER = "{n}"
"""Stands in the body where each request's own number goes: ten digits, so that the length never changes."""
FIRST = 1_000_000_000
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One load run: it ends after `seconds`, or `count` requests if that comes first."""

    url: str
    method: str = "GET"
    body: str = ""
    connections: int = 64
    seconds: float = 5.0
    count: int = 0
    """0: no bound."""
    first: int = FIRST
    """The number of the first request."""

    def requests(self) -> Iterator[bytes]:
        """The requests to send, in order."""
        parts = urlsplit(self.url)
        length = len(self.body.replace(NUMBER, str(FIRST)).encode())
        head = (
            f"{self.method} {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
        before, number, after = self.body.partition(NUMBER)
        prefix, suffix = (head + before).encode(), after.encode()
        last = self.first + (self.count or FIRST)
        for n in range(self.first, last):
            yield b"%s%d%s" % (prefix, n, suffix) if number else prefix


def run(plan: Plan) -> dict[str, object]:
    """Send the load and say what came back; times in milliseconds, rates per second."""
    poll = select.epoll()
    connections = {one.fileno(): one for one in (connect(plan.url) for _ in range(plan.connections))}
    requests = plan.requests()
    partial: dict[int, bytes] = {}
    sent_at: dict[int, float] = {}
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    now = started = time.monotonic()
    deadline, answered_in_time, last_answer = started + plan.seconds, 0, started

    def send(descriptor: int) -> None:
        request = next(requests, None) if time.monotonic() < deadline else None
        if request is not None:
            sent_at[descriptor] = time.monotonic()
            connections[descriptor].sendall(request)

    for descriptor in connections:
        poll.register(descriptor, select.EPOLLIN)
        send(descriptor)
    while sent_at:
        ready = poll.poll(10)
        if not ready:
            raise TimeoutError(f"{len(sent_at)} requests unanswered for 10 s")
        for descriptor, _ in ready:
            data = connections[descriptor].recv(1 << 16)
            if not data:
                raise ConnectionError("the service closed a connection")
            answer = partial.pop(descriptor, b"") + data
            if not is_whole(answer):
                partial[descriptor] = answer
                continue
            now = time.monotonic()
            statuses[int(answer[9:12])] += 1
            if now <= deadline:
                answered_in_time, last_answer = answered_in_time + 1, now
                latencies.append(now - sent_at[descriptor])
            del sent_at[descriptor]
            send(descriptor)
    for one in connections.values():
        one.close()
    took_s = max(last_answer - started, 1e-6)
    latencies.sort()
    cpu = os.times()
    return {
        "rps": answered_in_time / took_s,
        "answered": statuses.total(),
        "statuses": {str(status): number for status, number in statuses.items()},
        "p50_ms": quantile(latencies, 0.5) * 1000,
        "p99_ms": quantile(latencies, 0.99) * 1000,
        "seconds": now - started,
        "cpu_cores": (cpu.user + cpu.system) / max(now - started, 1e-6),
    }


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 80), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def is_whole(answer: bytes) -> bool:
    """Whether all of an answer is there. Raises ValueError for one without Content-Length."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = _LENGTH.search(answer, 0, end)
    if length is None:
        raise ValueError(f"an answer without Content-Length: {answer[:200]!r}")
    return len(answer) >= end + 4 + int(length[1])


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--method", default="GET")
    parser.add_argument("--body", default="", help=f"{NUMBER} becomes the request's number")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--first", type=int, default=FIRST)
    print(json.dumps(run(Plan(**vars(parser.parse_args())))))


if __name__ == "__main__":
    _main()

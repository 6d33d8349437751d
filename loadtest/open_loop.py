"""The open-loop generator: requests are due at a fixed rate, whatever becomes of those before.

A closed loop waits for a slow answer and sends nothing meanwhile, so it counts one slow answer where many callers would
have met one (coordinated omission). Here a latency begins when its request was due, also if it had to wait for one of
the connections.
"""

import argparse
import json
import select
import socket
import time
from collections import Counter, deque
from dataclasses import dataclass

from loadtest import client
from loadtest.client import Plan


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When requests are due."""

    rate: float
    seconds: float
    started: float

    def due(self, number: int) -> float:
        return self.started + number / self.rate

    def behind(self, sent: int, now: float) -> bool:
        """Whether the next request is due."""
        return self.due(sent) <= now and self.due(sent) < self.started + self.seconds


def run(plan: Plan, *, rate: float) -> dict[str, object]:
    """Send `rate` requests a second for `plan.seconds`; what came back, latencies in milliseconds from when due."""
    poll = select.epoll()
    connections = {one.fileno(): one for one in (client.connect(plan.url) for _ in range(plan.connections))}
    for descriptor in connections:
        poll.register(descriptor, select.EPOLLIN)
    idle = deque(connections)
    requests = plan.requests()
    due_at: dict[int, float] = {}
    partial: dict[int, bytes] = {}
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    accepted: list[float] = []
    schedule = Schedule(rate=rate, seconds=plan.seconds, started=time.monotonic())
    sent = 0
    while True:
        now = time.monotonic()
        while idle and schedule.behind(sent, now):
            descriptor = idle.popleft()
            due_at[descriptor] = schedule.due(sent)
            connections[descriptor].sendall(next(requests))
            sent += 1
        over = schedule.due(sent) >= schedule.started + plan.seconds
        if over and not due_at:
            break
        wait_s = 10.0 if over or not idle else max(0.0, schedule.due(sent) - time.monotonic())
        ready = poll.poll(wait_s)
        if not ready and (over or not idle):
            raise TimeoutError(f"{len(due_at)} requests unanswered for 10 s")
        for descriptor, _ in ready:
            answer = _received(connections[descriptor], partial.pop(descriptor, b""))
            if not client.is_whole(answer):
                partial[descriptor] = answer
                continue
            statuses[int(answer[9:12])] += 1
            latencies.append(time.monotonic() - due_at.pop(descriptor))
            if answer[9:12] == b"202":
                accepted.append(latencies[-1])
            idle.append(descriptor)
    for one in connections.values():
        one.close()
    latencies.sort()
    accepted.sort()
    return {
        "asked_rps": rate,
        "rps": len(latencies) / max(time.monotonic() - schedule.started, 1e-6),
        "answered": statuses.total(),
        "statuses": {str(status): number for status, number in statuses.items()},
        **{f"p{share}_ms": client.quantile(latencies, share / 100) * 1000 for share in (50, 90, 99)},
        "accepted_p99_ms": client.quantile(accepted, 0.99) * 1000,
        "worst_ms": latencies[-1] * 1000 if latencies else 0.0,
    }


def _received(connection: socket.socket, before: bytes) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionError("the service closed a connection")
    return before + data


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--method", default="GET")
    parser.add_argument("--body", default="", help=f"{client.NUMBER} becomes the request's number")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--first", type=int, default=client.FIRST)
    given = vars(parser.parse_args())
    rate = given.pop("rate")
    print(json.dumps(run(Plan(**given), rate=rate)))


if __name__ == "__main__":
    _main()

"""Floods: clients that obey Retry-After, and ten times as much as is drained."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadtest import client, crowds, marks
from loadtest.measures import Run, Sizes, Watch, until
from loadtest.services import Running, Service
from loadtest.valkey import Durability, Valkey, serving

RUN_S = 0.05
KEPT_BYTES = 256 * 1024
SETTLED_S = 10
"""From then on memory may not grow: the queue is full, and as many tasks are forgotten as end."""


def clients_that_obey(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`obeying`: how soon all of many clients are in that come at once; 1: as fast as tasks leave the full queue."""
    limit = sizes.clients // 10
    with serving(durability) as valkey, _limited(service, limit).running(valkey) as running:
        running.work()
        drain_per_s = _drain_per_s(running, limit)
        watch = Watch(running, valkey, sizes)
        bodies = [_body(client.FIRST * 3 + n) for n in range(sizes.clients)]
        answers = asyncio.run(crowds.obeying(running.url, bodies))
        figures = obeying_figures(answers, sizes.clients, limit=limit, drain_per_s=drain_per_s)
        yield watch.run("obeying", service, durability, figures)


def obeying_figures(
    answers: Sequence[crowds.Answer], clients: int, *, limit: int, drain_per_s: float
) -> dict[str, float]:
    began = min(answer.sent_s for answer in answers)
    took_s = max(answer.sent_s + answer.took_s for answer in answers) - began
    first_round_s = max(sorted(answer.sent_s for answer in answers)[:clients])
    return {
        "clients": clients,
        "drain_per_s": drain_per_s,
        "took_s": took_s,
        "times": took_s / max(1e-6, (clients - limit) / drain_per_s),
        "busiest": crowds.busiest(answers, after_s=first_round_s) / drain_per_s,
        "tries": len(answers) / clients,
        "wrong": sum(answer.status not in (202, 429) for answer in answers),
    }


def ten_times_the_drain(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`flood`: what 202s take while ten times as much comes as is drained, beside half of it; and what memory grows."""
    limit = sizes.clients // 10
    with serving(durability) as valkey, _limited(service, limit).running(valkey) as running:
        running.work()
        drain_per_s = _drain_per_s(running, limit)
        watch = Watch(running, valkey, sizes)
        plan: dict[str, Any] = {"module": "loadtest.open_loop", "method": "POST", "body": _body(), "connections": 64}
        half = running.load("/tasks", **plan, rate=drain_per_s / 2, seconds=sizes.flood_s, first=3 * client.FIRST)
        with Memory(running, valkey) as memory:
            flood = running.load("/tasks", **plan, rate=10 * drain_per_s, seconds=sizes.flood_s, first=4 * client.FIRST)
        figures = {
            "drain_per_s": drain_per_s,
            "half_p99_ms": half["accepted_p99_ms"],
            "flood_p99_ms": flood["accepted_p99_ms"],
            "times": flood["accepted_p99_ms"] / half["accepted_p99_ms"],
            "accepted": flood["statuses"].get("202", 0),
            "refused": flood["statuses"].get("429", 0),
            "wrong": sum(count for status, count in flood["statuses"].items() if status not in ("202", "429")),
        }
        yield watch.run("flood", service, durability, figures | memory.growth())


@dataclass
class Memory:
    """What gateway and server use, looked at once a second from another thread."""

    running: Running
    valkey: Valkey
    gateway: list[int] = field(default_factory=list)
    server: list[int] = field(default_factory=list)

    def __enter__(self) -> "Memory":
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(1):
            self.gateway.append(self.running.app.rss_bytes())
            self.server.append(self.valkey.used_memory())

    def growth(self) -> dict[str, float]:
        """In percent, of the second half over the first, since it had settled."""
        return {"gateway_percent": _growth(self.gateway), "valkey_percent": _growth(self.server)}


def _growth(seen: list[int]) -> float:
    settled = seen[SETTLED_S:]
    half = len(settled) // 2
    return 100 * (max(settled[half:]) / max(settled[:half]) - 1) if half else 0.0


def _limited(service: Service, limit: int) -> Service:
    """Finished tasks keep little enough to have settled soon, too."""
    more = {"TASKGATE_QUEUE_LIMIT_TASKS": str(limit), "TASKGATE_RETENTION_BYTES": str(KEPT_BYTES)}
    return replace(service, environ=service.environ | more)


def _drain_per_s(running: Running, limit: int) -> float:
    """How many tasks leave a queue that always has some."""
    running.load("/tasks", method="POST", body=_body(), count=limit, first=2 * client.FIRST)
    until(lambda: marks.count(running.marks) == limit, "the first jobs did not run", within_s=60)
    times = sorted(mark.at_s for mark in marks.read(running.marks))
    return (len(times) - 1) / (times[-1] - times[0])


def _body(number: int | None = None) -> str:
    payload = json.dumps({"n": 0, "seconds": RUN_S}).replace("0", client.NUMBER if number is None else str(number), 1)
    return f'{{"type":"sleeps","payload":{payload}}}'

"""A client that goes on submitting, asking and listening whatever happens to Redis, and keeps account of it."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from typing import Any

import httpx
from redis.asyncio import Redis

from taskgate.contract.store import Store
from tests.contract import invariants
from tests.system.rig import FINAL, Rig, overlaps

JOBS: list[tuple[str, dict[str, int]]] = [
    ("cpu", {"ms": 20}),
    ("cpu", {"ms": 60}),
    ("wait", {"ms": 100}),
    ("raises", {"n": 0}),
    ("progress", {"steps": 2000}),
]
FAILS = {"raises"}


class Traffic:
    """Run it beside the trouble; then `stop` it and see `settled`."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._http = httpx.AsyncClient(base_url=rig.url, trust_env=False, timeout=30)
        self._tasks: list[asyncio.Task[None]] = []
        self.accepted: dict[str, str] = {}
        """Ids of what was answered 202, with their types."""
        self.unsure: set[str] = set()
        """Ids of submissions whose outcome the service did not know."""
        self.answers: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.live = True
        """Whether liveness was green each time."""
        self._going = True

    def start(self, *, clients: int = 2) -> None:
        self._tasks = [asyncio.ensure_future(self._submit_and_ask()) for _ in range(clients)]
        self._tasks.append(asyncio.ensure_future(self._probe()))

    async def stop(self) -> None:
        """Let what was asked be answered, so that all that was accepted is known."""
        self._going = False
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    async def submit(self, task_type: str, payload: dict[str, int]) -> httpx.Response:
        begun = time.monotonic()
        answer = await self._http.post("/tasks", json={"type": task_type, "payload": payload})
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
        body = answer.json()
        self.answers[f"{answer.status_code}{' ' + body['outcome'] if 'outcome' in body else ''}"] += 1
        if answer.status_code == 202:
            self.accepted[body["id"]] = task_type
        else:
            assert answer.status_code in (429, 503), answer.text
            assert int(answer.headers["retry-after"]) >= 1
            if "task_id" in body:
                self.unsure.add(body["task_id"])
        return answer

    async def _submit_and_ask(self) -> None:
        while self._going:
            answer = await self.submit(*random.choice(JOBS))
            if self.accepted and random.random() < 0.3:
                status = await self._http.get(f"/tasks/{random.choice(list(self.accepted))}")
                assert status.status_code in (200, 503), status.text
            await asyncio.sleep(0.03 if answer.status_code == 202 else 0.1)

    async def _probe(self) -> None:
        while self._going:
            self.live = self.live and (await self._http.get("/livez")).status_code == 200
            await asyncio.sleep(0.2)


async def stream(rig: Rig, task_id: str) -> list[str]:
    """Follow a task as a browser does, again after every break; the names of all its events up to `end`."""
    names: list[str] = []
    last_id = ""
    async with httpx.AsyncClient(base_url=rig.url, trust_env=False, timeout=30) as http:
        while "end" not in names:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            with contextlib.suppress(httpx.TransportError):
                async with http.stream("GET", f"/tasks/{task_id}/events", headers=headers) as answer:
                    if answer.status_code == 204:
                        names.append("end")
                    async for line in answer.aiter_lines():
                        if line.startswith("event:"):
                            names.append(line.removeprefix("event:").strip())
                        if line.startswith("id:"):
                            last_id = line.removeprefix("id:").strip()
            await asyncio.sleep(0.1)
    return names


async def settled(rig: Rig, traffic: Traffic, *more: str, within_s: float = 90) -> list[Any]:
    """Every 202 ended once, as it should; every attempt that counts has run, none twice; all is counted and stored
    right. Returns the records."""
    deadline = time.monotonic() + within_s
    ids = [*traffic.accepted, *more, *traffic.unsure]
    found: list[Any] = []
    while time.monotonic() < deadline:
        found = [each for n in range(0, len(ids), 100) for each in await rig.store.read(ids[n : n + 100])]
        if all(record is None or record.status in FINAL for record in found):
            break
        await asyncio.sleep(0.1)
    records = {record.id: record for record in found if record is not None}
    assert not {*traffic.accepted, *more} - records.keys(), "accepted and lost"
    stuck = [(r.id, r.spec.type, str(r.status), r.attempt) for r in records.values() if r.status not in FINAL]
    assert not stuck, stuck
    runs = Counter(run.task_id for run in rig.runs())
    for record in records.values():
        ended = "failed" if record.spec.type in FAILS else "succeeded"
        assert record.status == ended, (record.spec.type, record.status, record.attempt, record.error)
        assert record.attempt == runs[record.id], f"{record.spec.type}: {record.attempt} counted, {runs[record.id]} ran"
        assert record.attempt == (2 if record.spec.type in FAILS else 1), "an attempt was burned"
    assert overlaps(rig.runs(), {}) == []
    async with Redis.from_url(rig.server.url, protocol=2) as client:
        await invariants.check(client, Store(client))
    return list(records.values())

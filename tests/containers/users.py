"""Users behind TLS who submit all the while, and the ledger of what they were promised."""

import asyncio
import collections
import random
import ssl
import time
import uuid
from typing import Any

import httpx

FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
_AGAIN_S = 0.3


def client(boxes: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=boxes.url,
        headers={"Authorization": f"Bearer {boxes.key}"},
        verify=ssl.create_default_context(cafile=str(boxes.certificate)),
        trust_env=False,
        timeout=15,
    )


class Users:
    """Each repeats a submission under its key until it is accepted. Inside `async with` they are at work."""

    def __init__(self, boxes: Any, count: int = 6) -> None:
        self.accepted: dict[str, str] = {}
        """Idempotency key -> task id."""
        self.refused: collections.Counter[str] = collections.Counter()
        self.broken: list[str] = []
        self._boxes = boxes
        self._count = count
        self._stopping = False

    async def __aenter__(self) -> "Users":
        self._http = client(self._boxes)
        self._working = [asyncio.create_task(self._work()) for _ in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Returns when every submission has been accepted and every accepted task has ended."""
        self._stopping = True
        await asyncio.gather(*self._working)
        await self._ends()
        await self._http.aclose()

    async def goes_on(self, *, within_s: float = 90) -> float:
        """Seconds until 20 more have been accepted."""
        started, wanted = time.monotonic(), len(self.accepted) + 20
        while len(self.accepted) < wanted:
            if time.monotonic() > started + within_s:
                raise RuntimeError(
                    f"{len(self.accepted)} accepted, and no more within {within_s:.0f} s; {self.refused}"
                )
            await asyncio.sleep(0.05)
        return time.monotonic() - started

    async def _work(self) -> None:
        while not self._stopping:
            key, body = str(uuid.uuid4()), {"type": "boxed.work", "payload": random.choice([0, 0.02, 0.2, 1.5])}
            answer = None
            while answer is None:
                answer = await self._try(key, body)
                await asyncio.sleep(_AGAIN_S if answer is None else 0)
            self.accepted[key] = answer
            await asyncio.sleep(random.uniform(0.05, 0.3))

    async def _try(self, key: str, body: dict[str, Any]) -> str | None:
        try:
            answer = await self._http.post("/tasks", json=body, headers={"Idempotency-Key": key})
        except httpx.TransportError as error:
            self.refused[type(error).__name__] += 1
            return None
        if answer.status_code == 202:
            return str(answer.json()["id"])
        self.refused[str(answer.status_code)] += 1
        told = answer.headers.get("retry-after", "")
        is_problem = answer.headers.get("content-type") == "application/problem+json"
        if answer.status_code not in (429, 503) or not told.isdecimal() or not is_problem:
            self.broken.append(f"{answer.status_code}, Retry-After {told!r}: {answer.text[:200]}")
        return None

    async def _ends(self) -> None:
        deadline = time.monotonic() + 180
        for task_id in self.accepted.values():
            while (status := await self._status(task_id)) not in FINAL:
                if time.monotonic() > deadline:
                    self.broken.append(f"{task_id} is still {status}")
                    break
                await asyncio.sleep(0.2)

    async def _status(self, task_id: str) -> str:
        try:
            answer = await self._http.get(f"/tasks/{task_id}", params={"fields": "status"})
        except httpx.TransportError as error:
            return type(error).__name__
        return str(answer.json()["status"]) if answer.status_code == 200 else str(answer.status_code)

"""The service as the demo sees it: HTTP and event streams, nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import httpx_sse

from taskgate.demo.orders import Order

_ANSWER_S = 15.0
_SILENCE_S = 45.0
"""Three of the stream's pings."""


class Unexpected(Exception):
    """The service answered what it should not have."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for a submission; `retry_after_s` is whole seconds, 0 without the header."""

    code: int
    headers: httpx.Headers
    body: dict[str, Any]

    @property
    def task_id(self) -> str:
        return str(self.body.get("id", ""))

    @property
    def retry_after_s(self) -> int:
        return int(self.headers.get("retry-after", 0))


class Api:
    """Every call of the demo. No proxy is asked: what it works is meant to be near."""

    def __init__(self, url: str, *, api_key: str = "") -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            # SSL_CERT_FILE names whom to trust; without TLS there is nothing to load.
            verify=httpx.create_ssl_context() if url.startswith("https:") else False,
            trust_env=False,
            timeout=_ANSWER_S,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def ready(self) -> bool:
        try:
            return (await self._http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def submit(self, order: Order, *, key: str | None = None) -> Answer:
        """One try, whatever comes of it."""
        headers = {"Idempotency-Key": key} if key else {}
        body = {"type": order.type, "payload": order.payload, **order.options}
        response = await self._http.post("/tasks", json=body, headers=headers)
        return Answer(response.status_code, response.headers, response.json())

    async def task(self, task_id: str) -> dict[str, Any]:
        """The task now, not as some cache remembers it."""
        return await self._object("GET", f"/tasks/{task_id}", headers={"Cache-Control": "no-cache"})

    async def result(self, task_id: str) -> Any:
        return await self._json("GET", f"/tasks/{task_id}/result")

    async def cancel(self, task_id: str) -> dict[str, Any]:
        return await self._object("POST", f"/tasks/{task_id}/cancel")

    async def room_of(self, queue: str) -> int | None:
        """Tasks that may wait in it; None: no such queue is worked on."""
        workers = await self._object("GET", "/workers")
        queues = await self._object("GET", "/queues", params={"queue": queue})
        if not any(queue in worker["queues"] for worker in workers["items"]):
            return None
        limits = [limit for one in queues["items"] for limit in one["limits"] if limit["limit"] == "queue-tasks"]
        return int(limits[0]["max"]) if limits else None

    async def child_of(self, task_id: str) -> int | None:
        """Process id of the child that runs the task, once its supervisor has said so."""
        workers = await self._object("GET", "/workers")
        for worker in workers["items"]:
            for child in worker["children"]:
                if task_id in child["tasks"]:
                    return int(child["pid"])
        return None

    async def events(self, task_id: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """(name, data) of every event up to `end`, resuming where a connection broke."""
        last_id, timeout = "", httpx.Timeout(_ANSWER_S, read=_SILENCE_S)
        while True:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            path = f"/tasks/{task_id}/events"
            try:
                async with httpx_sse.aconnect_sse(self._http, "GET", path, headers=headers, timeout=timeout) as source:
                    if source.response.status_code != 200:
                        raise Unexpected(f"GET {path} answered {source.response.status_code}")
                    async for event in source.aiter_sse():
                        last_id = event.id or last_id
                        if event.data:
                            yield event.event, json.loads(event.data)
                        if event.event == "end":
                            return
            except httpx.TransportError:
                await asyncio.sleep(0.5)

    async def _object(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        body = await self._json(method, path, **request)
        if not isinstance(body, dict):
            raise Unexpected(f"{method} {path} answered {body!r}, not an object")
        return body

    async def _json(self, method: str, path: str, **request: Any) -> Any:
        response = await self._http.request(method, path, **request)
        if not response.is_success:
            raise Unexpected(f"{method} {path} answered {response.status_code}: {response.text[:300]}")
        return response.json()

"""A key that ends, at a gateway of several processes: each of them hears it, whichever was asked to revoke it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from app.access import KNOWN_S
from tests.api.conftest import Served, Worker, submit
from tests.api.test_access import bearer
from tests.conftest import eventually

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

STREAMS = 12
"""On connections of their own: both processes have some."""


async def test_a_revoked_key_ends_in_all_processes_and_so_do_its_streams(
    serve: Callable[..., Awaitable[Served]], worker: Worker
) -> None:
    """Long before it would be looked up again."""
    served = await serve(api_key="the-first-key", gateway_processes=2)
    options: dict[str, Any] = {"base_url": served.url, "timeout": 60, "trust_env": False, "verify": False}
    async with httpx.AsyncClient(headers=bearer("the-first-key"), **options) as first:
        made = (await first.post("/keys", json={"name": "n", "scopes": ["tasks:read", "tasks:write"]})).json()
        async with httpx.AsyncClient(headers=bearer(made["key"]), **options) as http:
            task_id = (await submit(http, type="any", payload=None))["id"]
            began = [asyncio.Event() for _ in range(STREAMS)]

            async def follow(n: int) -> int:
                async with (
                    httpx.AsyncClient(headers=bearer(made["key"]), **options) as own,
                    own.stream("GET", f"/tasks/{task_id}/events") as stream,
                ):
                    async for _ in stream.aiter_raw():
                        began[n].set()
                    return stream.status_code

            following = [asyncio.ensure_future(follow(n)) for n in range(STREAMS)]
            async with asyncio.timeout(60):
                await asyncio.gather(*(each.wait() for each in began))
            assert (await first.delete(f"/keys/{made['id']}")).status_code == 204
            async with asyncio.timeout(KNOWN_S * 0.8):
                assert await asyncio.gather(*following) == [200] * STREAMS

        async def answer() -> int:
            async with httpx.AsyncClient(headers=bearer(made["key"]), **options) as again:
                return (await again.get("/tasks")).status_code

        async def answers() -> list[int]:
            return [await answer() for _ in range(STREAMS)]

        await eventually(answers, lambda statuses: statuses == [401] * STREAMS, within_s=KNOWN_S * 0.8)
    assert await served.stop() == 0

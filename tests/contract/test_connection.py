"""Connections to Redis that break: whatever the event loop calls it, the caller hears that Redis is away."""

from pathlib import Path

import pytest
import uvloop
from redis.exceptions import ConnectionError as Broken

from taskgate.contract.connection import connect
from taskgate.contract.store import Store
from taskgate.settings import load
from tests.conftest import eventually
from tests.contract.conftest import patient
from tests.system.proxy import Proxy, proxy


def test_a_connection_that_was_reset_before_it_is_used_is_away_and_replaced(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By uvloop, as gateways and supervisors run: its closed transports raise what no asyncio transport does."""

    async def run() -> None:
        async with proxy(Path(redis_url.removeprefix("unix://"))) as link:
            monkeypatch.setenv("TASKGATE_REDIS_URL", link.url)
            client = patient(connect(load(), "supervisor"))
            try:
                await _reset_in_use(client.connection_pool, link)
                assert await Store(client).now_ms() > 0
            finally:
                await client.aclose()

    uvloop.run(run())


async def _reset_in_use(pool, link: Proxy) -> None:  # type: ignore[no-untyped-def]
    connection = await pool.get_connection()
    transport = connection._writer.transport
    link.cut(reset=True)

    async def closed() -> bool:
        return bool(transport.is_closing())

    await eventually(closed, bool)
    with pytest.raises(Broken):
        await connection.send_command("PING")
    await pool.release(connection)

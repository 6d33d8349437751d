"""Without a key, a web page that lets its own name mean this machine is refused."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from app.door import Door
from taskgate.contract.store import Store
from tests.api.conftest import client_of
from tests.api.test_submit import JSON, nothing_is_queued

KEY = "a key of the operator"


@asynccontextmanager
async def _calling(door: Door, host: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(door) as http:
        http.headers["host"] = host
        yield http


@pytest.mark.parametrize("host", ["attacker.example", "Attacker.Example:8080", "a.b.", "127.0.0.1.attacker.example"])
async def test_a_name_that_anybody_may_own_is_refused_whatever_is_asked(
    gateway_of: Callable[..., Door], live_store: Store, host: str
) -> None:
    async with _calling(gateway_of(), host) as http:
        for answer in (
            await http.post("/tasks", content=b'{"type":"any"}', headers=JSON),
            await http.get("/queues"),
            await http.get("/livez"),
        ):
            assert (answer.status_code, answer.json()["type"]) == (421, "/problems/misdirected-request")
    assert await nothing_is_queued(live_store)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "[::1]:8080", "[::ffff:127.0.0.1]:80", "127.1", "localhost:1", "my.LOCALHOST", "box:80"]
)
async def test_an_address_and_a_name_of_this_machine_are_answered(gateway_of: Callable[..., Door], host: str) -> None:
    async with _calling(gateway_of(), host) as http:
        assert (await http.get("/livez")).status_code == 200


@pytest.mark.parametrize("settings", [{"api_key": KEY}, {"insecure": True}], ids=["key", "insecure"])
async def test_any_name_is_answered_where_a_key_is_asked_for_or_it_is_meant(
    gateway_of: Callable[..., Door], settings: dict[str, str | bool]
) -> None:
    async with _calling(gateway_of(**settings), "tasks.example.com") as http:
        http.headers["authorization"] = f"Bearer {KEY}"
        assert (await http.get("/queues")).status_code == 200

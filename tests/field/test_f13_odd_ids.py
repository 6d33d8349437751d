"""F13: what clients call things is data: never a path, a pattern or an error of ours."""

import asyncio
import re

import httpx
import pytest
from redis.asyncio import Redis

from tests.api.conftest import Served, Worker
from tests.contract.invariants import everything

ODD = [
    *("a/b", "a%2Fb", "..", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "a?b#c", "a%3Fb%23c", "*", "%2A", "[a-z]"),
    *("a:b", "a{b}c", "%20", "%00", "%", "%zz", "\u00e9", "e\u0301", "%C3%A9", "e%CC%81", "\u200f", "%E2%80%8F", "%FF"),
    *("x" * 10_000, "tg:{0}:task:*", "0*", "\\", "%0d%0aX-Evil:%201"),
]


async def send(port: int, method: str, target: str, body: bytes = b"") -> int:
    """The status of an answer to exactly these bytes; a client library would tidy the path up first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.transport.abort()
    status = re.match(rb"HTTP/1.1 (\d+) ", answer)
    assert status is not None, answer[:200]
    assert b"x-evil" not in answer.partition(b"\r\n\r\n")[0].lower()
    return int(status[1])


@pytest.fixture
async def port(shared_gateway: Served, worker: Worker) -> int:
    return (await shared_gateway.started()).port


async def test_odd_names_address_nothing_and_no_more_than_one(port: int, redis_client: Redis) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        victims = [(await http.post("/tasks", json={"type": "any", "payload": n})).json()["id"] for n in range(2)]
        before = await everything(redis_client)
        for odd in ODD:
            for method, path in (
                ("GET", ""),
                ("DELETE", ""),
                ("GET", "/result"),
                ("GET", "/logs"),
                ("GET", "/events"),
                ("POST", "/cancel"),
                ("POST", "/redrive"),
            ):
                status = await send(port, method, f"/tasks/{odd}{path}")
                assert status in (400, 404, 405, 414, 431), (method, odd[:40], path, status)
        assert await everything(redis_client) == before
        for task_id in victims:
            assert (await http.get(f"/tasks/{task_id}")).json()["status"] == "queued"


async def test_odd_types_and_queues_are_refused(port: int, redis_client: Redis) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        before = await everything(redis_client)
        for odd in {*ODD, "", "\0", "a\nb"} - {".."}:  # two dots are a name like another: no path is made of it
            for body in ({"type": odd, "payload": 1}, {"type": "any", "queue": odd, "payload": 1}):
                assert (await http.post("/tasks", json=body)).status_code == 422, odd[:40]
            for name in ("type", "queue"):
                answer = await http.get("/tasks", params={name: odd})
                assert answer.status_code in (400, 414), odd[:40]
        assert (await http.get("/tasks", params={"queue": ".."})).json()["items"] == []
        assert await everything(redis_client) == before


async def test_every_odd_key_is_its_own_or_refused(port: int) -> None:
    """Two spellings of one letter are both refused: a key is printable ASCII, 255 characters at most."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        made: dict[str, str] = {}
        for odd in ODD:
            answers = [
                await http.post(
                    "/tasks", json={"type": "any", "payload": 1}, headers=[(b"Idempotency-Key", odd.encode())]
                )
                for _ in range(2)
            ]
            if odd.isascii() and len(odd) <= 255:
                assert [answer.status_code for answer in answers] == [202, 202], odd
                assert answers[0].json()["id"] == answers[1].json()["id"]
                made[odd] = answers[0].json()["id"]
            else:
                assert [answer.status_code for answer in answers] == [400, 400], odd
        assert len(set(made.values())) == len(made)

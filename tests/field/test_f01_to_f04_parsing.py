"""F01 to F04: numbers that are none, deep nesting, and bodies without end, through the whole service.

What the door refuses is told case by case in tests/api/test_submit.py; here is what it lets in, and what comes back.
"""

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest

from taskgate.contract.limits import MAX_DEPTH
from tests.processes import resident_bytes
from tests.system.rig import Rig

pytestmark = pytest.mark.full

CLIENTS = 32
HEAD = b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def strict(text: bytes) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


async def test_f01_a_result_that_is_no_number_spoils_only_its_task(rig: Rig) -> None:
    rig.settings["TASKGATE_HANDLERS"] = "tests.field.odd_results"
    await rig.worker()
    await rig.gateway()
    bad = await rig.submit("odd", {"kind": "nan"}, max_attempts=1)
    deep = await rig.submit("odd", {"kind": "deep"}, max_attempts=1)
    good = await rig.submit("odd", {"kind": "fine"})
    for task_id, status, kind in ((bad, "failed", "result"), (deep, "failed", "result"), (good, "succeeded", None)):
        task = await rig.ended(task_id)
        assert (task["status"], (task["error"] or {}).get("kind")) == (status, kind)
        for path in ("", "/events", "/logs"):
            answer = await rig.http.get(f"/tasks/{task_id}{path}")
            assert answer.status_code == 200
            if path != "/events":
                strict(answer.content)
            else:
                for line in answer.content.splitlines():
                    if line.startswith(b"data: "):
                        strict(line[6:])
    listed = await rig.http.get("/tasks")
    assert {task["id"] for task in strict(listed.content)["items"]} == {bad, deep, good}
    dead = strict((await rig.http.get("/dead-letters")).content)["items"]
    assert {task["id"] for task in dead} == {bad, deep}


async def test_f02_the_deepest_payload_works_end_to_end(rig: Rig) -> None:
    rig.settings["TASKGATE_HANDLERS"] = "tests.field.odd_results"
    await rig.worker()
    await rig.gateway()
    opening, closing = '{"a":[' * (MAX_DEPTH // 2), "]}" * (MAX_DEPTH // 2)
    body = f'{{"type":"back","payload":{opening}1.0{closing}}}'
    answer = await rig.http.post("/tasks", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 202
    assert (await rig.ended(answer.json()["id"]))["status"] == "succeeded"
    result = await rig.http.get(f"/tasks/{answer.json()['id']}/result")
    assert result.text == f"{opening}1.0{closing}"
    for depth in (MAX_DEPTH + 2, 1_000, 20_000, 100_000):
        nested = '{"type":"back","payload":' + "[" * depth + "1" + "]" * depth + "}"
        answer = await rig.http.post("/tasks", content=nested, headers={"content-type": "application/json"})
        assert answer.status_code == 422
    assert (await rig.ended(await rig.submit("back", 1)))["status"] == "succeeded"


async def test_f04_endless_bodies_of_many_are_all_cut(rig: Rig) -> None:
    """At full speed, chunked, all at once: memory does not grow by more than a few limits, and others are served."""
    rig.settings["TASKGATE_HANDLERS"] = "tests.field.odd_results"
    rig.settings["TASKGATE_MAX_BODY_BYTES"] = "1MiB"
    await rig.worker()
    gateway = await rig.gateway()
    before = resident_bytes(gateway.pid)

    async def endless() -> bytes:
        """The answer, as the kernel keeps it: a stream that cannot be written to drops what it has not read."""
        loop = asyncio.get_running_loop()
        with socket.socket() as link:
            link.setblocking(False)
            await loop.sock_connect(link, ("127.0.0.1", rig.port))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(link, HEAD)
                for _ in range(2_000):
                    await loop.sock_sendall(link, b"8000\r\n" + b" " * 32_768 + b"\r\n")
                raise AssertionError("64 MB were taken")
            return await loop.sock_recv(link, 1_000)

    everyone = asyncio.gather(*(endless() for _ in range(CLIENTS)))
    while not everyone.done():
        assert (await rig.http.get("/livez")).status_code == 200
        await asyncio.wait([everyone], timeout=0.05)
    assert {line[:13] for line in await everyone} == {b"HTTP/1.1 413 "}
    assert resident_bytes(gateway.pid) - before < (CLIENTS * 4 + 64) * 1024**2
    assert (await rig.ended(await rig.submit("back", 1)))["status"] == "succeeded"

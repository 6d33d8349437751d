"""Where the gateway's microseconds of a submission and of a status read go.

Each part is the gateway's own code, run by itself in this process: the quickest of many short runs, since others can
only add to it. What the parts do not explain of a running gateway's CPU time is its event loop and its sockets.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import uvloop
from uvicorn.server import ServerState

from app import accepted, envelope
from app.door import Door
from app.gateway import Gateway
from app.metrics import Metrics
from app.protocol import Connection
from app.reply import PROTECTION, Caller, Reply
from loadtest import client, store_cost
from loadtest.measures import Run, Sizes, Watch
from loadtest.services import NOOP, Running, Service
from loadtest.valkey import Durability, Valkey, serving
from taskgate.contract import ids
from taskgate.contract.connection import connect
from taskgate.contract.models import Submission, TaskSpec
from taskgate.settings import Settings

GROUP = 32
"""Submissions in a call: about half of those that 64 connections have under way."""

CHUNKS = 40
_BODY = NOOP.replace(client.NUMBER, str(client.FIRST)).encode()
_SPEC = TaskSpec(id=ids.new_task_id(), type="noop", timeout_s=3600, max_attempts=3)
_SUBMISSION = Submission(
    id=_SPEC.id, queue=_SPEC.queue, type=_SPEC.type, tenant=_SPEC.tenant, priority=_SPEC.priority, spec=b"", payload=b""
)
_CALLER = Caller("default", "0123456789ab-1")
_HEADERS = {b"host": b"127.0.0.1:8080", b"content-type": b"application/json", b"content-length": b"%d" % len(_BODY)}
_POST = b"POST /tasks HTTP/1.1\r\n%b\r\n%b" % (b"".join(b"%b: %b\r\n" % line for line in _HEADERS.items()), _BODY)


def gateway(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`anatomy-submit` and `anatomy-status`: microseconds by part, and the whole as the running gateway has it."""
    with serving(durability) as valkey, service.running(valkey) as running:
        posts = _whole(running, valkey, sizes, "/tasks", method="POST", body=NOOP)
        task_id = running.submit(NOOP.replace(client.NUMBER, "1"))
        gets = _whole(running, valkey, sizes, f"/tasks/{task_id}", method="GET")
        watch = Watch(running, valkey, sizes)
        of_posts, of_gets = uvloop.run(_parts(valkey, task_id, calls=max(64, sizes.store_tasks // CHUNKS)))
        for what, whole, parts in (("submit", posts, of_posts), ("status", gets, of_gets)):
            rest_us = whole["app_cpu_us"] - sum(parts.values())
            figures = {**parts, "loop_us": rest_us, "total_us": whole["app_cpu_us"]}
            figures["valkey_us"] = whole["valkey_cpu_us"]
            yield watch.run(f"anatomy-{what}", service, durability, figures)


def _whole(running: Running, valkey: Valkey, sizes: Sizes, path: str, **plan: str) -> dict[str, float]:
    running.load(path, seconds=min(1, sizes.load_s), **plan)
    watch = Watch(running, valkey, sizes)
    report = running.load(path, seconds=sizes.load_s, first=2 * client.FIRST, **plan)
    return watch.costs(report["answered"])


async def _parts(valkey: Valkey, task_id: str, *, calls: int) -> tuple[dict[str, float], dict[str, float]]:
    settings = Settings.model_validate(
        {"redis_url": valkey.url, "queue_limit_tasks": 10_000_000, "queue_limit_bytes": 1 << 40}
    )
    shared = Gateway(settings, connect(settings, "gateway"))
    try:
        await shared.types.refresh()
        posts = await _of_a_submission(shared, calls)
        posts["wire_us"] = await _wire_us(_POST, _said_of_a_submission(), calls)
        snapshot = await shared.snapshots.get(task_id, "default")
        asked = f"GET /tasks/{task_id} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n".encode()
        gets = {
            "wire_us": await _wire_us(asked, Reply(200, list(snapshot.headers), snapshot.body), calls),
            "cached_us": await _quickest_us(
                lambda: shared.status(task_id, _CALLER, {b"host": b"x"}, b"", _nothing), calls
            ),
        }
        return posts, gets
    finally:
        await shared.close()


async def _of_a_submission(shared: Gateway, calls: int) -> dict[str, float]:
    """By part; `group_us` is what the endpoint takes beyond the others."""
    task = envelope.parse(_BODY)
    payload = bytes(task.payload)
    value = envelope.value_of(payload)
    batch = [store_cost.task(n, with_key=False) for n in range(GROUP)]

    async def parse() -> None:
        envelope.value_of(bytes(envelope.parse(_BODY).payload))

    async def check() -> None:
        await shared.types.accept(task.type, value)

    async def encode() -> None:
        store_cost.task(1, with_key=False)

    async def reply() -> None:
        _said_of_a_submission()

    async def script() -> None:
        await shared.store.submit(batch, shared.limits)

    async def tasks() -> None:  # which the endpoint's callers are here; in the gateway they belong to HTTP
        await asyncio.gather(*(check() for _ in range(GROUP)))

    async def endpoint() -> None:
        await asyncio.gather(*(shared.submit(_BODY, _CALLER, _HEADERS, _nothing) for _ in range(GROUP)))

    parts = {
        "parse_us": await _quickest_us(parse, calls),
        "checks_us": await _quickest_us(check, calls),
        "encode_us": await _quickest_us(encode, calls),
        "script_us": await _quickest_us(script, calls // GROUP) / GROUP,
        "reply_us": await _quickest_us(reply, calls),
    }
    tasks_us = await _quickest_us(tasks, calls // GROUP) / GROUP - parts["checks_us"]
    whole_us = await _quickest_us(endpoint, calls // GROUP) / GROUP
    return {**parts, "group_us": whole_us - tasks_us - sum(parts.values())}


def _said_of_a_submission() -> Reply:
    return accepted.reply(_SUBMISSION.id, accepted.task_json(_SUBMISSION, _SPEC))


async def _quickest_us(call: Callable[[], Awaitable[object]], calls: int) -> float:
    """CPU of this thread for one of `calls`, of which there are CHUNKS."""
    best = float("inf")
    for _ in range(CHUNKS):
        began = time.thread_time()
        for _ in range(max(1, calls)):
            await call()
        best = min(best, (time.thread_time() - began) / max(1, calls))
    return best * 1e6


async def _wire_us(request: bytes, answer: Reply, calls: int) -> float:
    """From the bytes of a request to those of its answer, without socket: the parser, the door, the head."""

    async def say(*_: object) -> Reply:
        return answer

    settings = SimpleNamespace(
        api_key=None, tenant_header=None, max_body_bytes=1 << 20, access_log=False, cors_origins=(), insecure=False
    )
    saying = SimpleNamespace(
        settings=settings, draining=False, submit=say, status=say, metrics=Metrics(set()), access=None, traces=None
    )
    state = ServerState()
    state.default_headers = [(b"date", b"Mon, 30 Nov 2026 00:00:00 GMT"), *PROTECTION]
    config = SimpleNamespace(loaded_app=Door(cast(Gateway, saying), cast(Any, None)))
    connection = Connection(cast(Any, config), state, {})
    wire = _Wire()
    connection.connection_made(cast(Any, wire))

    async def exchange() -> None:
        connection.data_received(request)
        await asyncio.sleep(0)  # the turn of the task that answers

    cost_us = await _quickest_us(exchange, calls)
    if wire.written < CHUNKS * calls:
        raise OSError(f"{wire.written} of {CHUNKS * calls} requests were answered")
    return cost_us


class _Wire:
    """A transport that counts what is written to it."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, _: bytes) -> None:
        self.written += 1

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def _nothing() -> Any:
    raise AssertionError("nobody hangs up here")

"""Real children, and everything they say."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Claimed, TaskSpec
from tests.conftest import eventually
from workers import guard_client, wire
from workers.children import ChildProcess, ChildSpec, Exit
from workers.holdings import Holdings
from workers.slot import Progress, boot_ns
from workers.stacks import Stacks

JOBS = "tests.workers.jobs"
FOREVER_NS = 10**12
WITHIN_S = 20

UNSENDABLE = [
    ("submitted object", "result"),
    ("submitted none", "result"),
    ("submitted wrong", "result"),
    ("hidden class", "exception"),
]
"""Payloads of `ends_badly`, and the kind of error that they end with."""


def claimed(
    task_type: str,
    payload: Any = None,
    *,
    raw: bytes | None = None,
    attempt: int = 1,
    checkpoint: bytes = b"",
    timeout_s: float = 60,
    tenant: str = "default",
) -> Claimed:
    return Claimed(
        partition=0,
        epoch=1,
        attempt=attempt,
        created_ms=0,
        claimed_ms=0,
        spec=TaskSpec(id=new_task_id(), type=task_type, timeout_s=timeout_s, tenant=tenant),
        payload=json.dumps(payload).encode() if raw is None else raw,
        checkpoint=checkpoint,
    )


class Watched:
    """A child, what it said, and how it ended."""

    def __init__(self, spec: ChildSpec) -> None:
        self.messages: list[wire.Message] = []
        self.heard: Callable[[wire.Message], None] = lambda _: None
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._news = asyncio.Event()
        self.process = ChildProcess.start(spec, on_message=self._said, on_exit=self._ended)

    async def ready(self) -> "Watched":
        await self.until(lambda: self.process.ready or self.exited.done())
        assert self.process.ready, self.messages
        return self

    def hand(self, task_type: str, payload: Any = None, *, last: bool = False, **facts: Any) -> int:
        task = claimed(task_type, payload, **facts)
        seq = self.process.hand_over(task, deadline_ns=boot_ns() + FOREVER_NS, last=last)
        assert seq is not None
        return seq

    async def run(self, task_type: str, payload: Any = None, **facts: Any) -> wire.Done:
        return await self.done(self.hand(task_type, payload, **facts))

    async def done(self, seq: int) -> wire.Done:
        await self.until(lambda: self.of(wire.Done, seq) or self.exited.done())
        ends: list[wire.Done] = self.of(wire.Done, seq)
        assert len(ends) == 1, (self.exited, self.messages)
        return ends[0]

    def of(self, kind: type[Any], seq: int | None = None) -> list[Any]:
        return [one for one in self.messages if isinstance(one, kind) and (seq is None or one.seq == seq)]

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for what a message or the exit brings about."""
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def bury(self) -> None:
        self.process.kill()
        await asyncio.wait_for(asyncio.shield(self.exited), WITHIN_S)
        with contextlib.suppress(ChildProcessError):
            self.process.reap()
        self.process.close()

    def _said(self, _: ChildProcess, message: wire.Message) -> None:
        assert not self.exited.done()
        self.messages.append(message)
        self.heard(message)
        self._news.set()

    def _ended(self, _: ChildProcess, ended: Exit) -> None:
        self.exited.set_result(ended)
        self._news.set()


def stacks_of(holdings: Holdings, *, paused: bool = False) -> Stacks:
    """Of children without a supervisor; nobody is answered."""

    async def publish(_channel: str, _message: str) -> None: ...

    return Stacks(holdings, worker_id="w1", now_ms=lambda: 0, paused=lambda: paused, publish=publish)


def error(done: wire.Done) -> dict[str, Any]:
    """The error of an end, as the record shows it: strict JSON."""
    decoded = json.loads(done.error.decode())
    assert isinstance(decoded, dict)
    return decoded


async def until(holds: Callable[[], object], *, within_s: float = WITHIN_S) -> None:
    """Poll what no event tells."""

    async def read() -> object:
        return holds()

    await eventually(read, bool, within_s=within_s, every_s=0.002)


async def reported(watched: Watched, seq: int) -> Progress:
    """Wait until the handler of `seq` has reported: then it is surely inside."""

    async def read() -> Progress | None:
        task = watched.process.sample().tasks.get(seq)
        return task.progress if task else None

    progress = await eventually(read, bool, within_s=WITHIN_S, every_s=0.001)
    assert progress is not None
    return progress


@pytest.fixture(autouse=True)
def patient_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that a busy machine keeps waiting is not replaced in the middle of a test."""
    monkeypatch.setattr(guard_client, "_ACK_S", 60.0)


@pytest.fixture
async def child() -> AsyncIterator[Callable[..., Watched]]:
    """Start children; they are gone, reaped and closed after the test."""
    started: list[Watched] = []

    def start(kind: str = "sync", **facts: Any) -> Watched:
        facts.setdefault("handlers", (JOBS,))
        watched = Watched(ChildSpec(kind=kind, **facts))  # type: ignore[arg-type]
        started.append(watched)
        return watched

    yield start
    for watched in started:
        await watched.bury()

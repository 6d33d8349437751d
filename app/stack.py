"""`GET /tasks/{id}/stack`: where a running task is, asked of its supervisor by pub/sub and answered to this process."""

import asyncio
import functools
import secrets
import time
from datetime import datetime

import msgspec
import structlog

from app import waiting
from app.errors import Problem
from app.hub import Hub
from app.shared import shared
from app.snapshots import Snapshot
from app.view import at, encode
from taskgate.contract import keys, stacks
from taskgate.contract.stacks import StackAnswer, Thread
from taskgate.contract.states import Status
from taskgate.contract.store import Store

logger = structlog.get_logger()

ANSWER_S = 2.0
SHARED_S = 0.2
"""Whoever asks that soon after an answer gets the same."""
RETRY_S = 1
AGAIN_S = 0.2
"""A supervisor that does not hold what the record says it runs is asked again when that changes, or so long after."""

_RUNNING = (Status.RUNNING, Status.CANCELING)
_answer = msgspec.json.Decoder(StackAnswer).decode


class StackView(msgspec.Struct, kw_only=True):
    """Where a task is now. Frames only: no values of variables."""

    task_id: str
    attempt: int
    worker: str
    taken_at: datetime
    source: str | None
    """`loop`: the async task's own coroutines, told by its event loop. `faulthandler`: the threads of its process."""
    shared: bool
    """The event loop does not answer and is not known to be in this task: this is what the task waits behind."""
    threads: list[Thread] | None
    """The one that runs the handler is `current` and comes first; others are what it started, or live beside it."""
    text: str | None
    """The same for people."""
    reason: str | None
    """Why there is none: paused, not_begun, signal_taken (by the handler), another_task (holds the loop), no_answer."""


class Stacks:
    """One question per task at a time, whoever asks; what comes back is shared for a moment."""

    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        self._flights: dict[tuple[str, int], asyncio.Task[StackAnswer | None]] = {}
        self._asked: dict[str, asyncio.Future[StackAnswer]] = {}
        hub.on_mail = self._heard

    async def of(self, task_id: str, tenant: str) -> bytes:
        """JSON of StackView.

        Raises:
            TaskNotFound: no such task of that tenant.
            Problem: it does not run, or its supervisor does not answer.
        """
        snapshot = await self._hub.snapshots.fresh(task_id, tenant)
        answer = await self._of(snapshot)
        ask_until = time.monotonic() + ANSWER_S
        while answer is not None and answer.reason == "ended":
            # Ended, or begun anew, or only just claimed: the record and the supervisor are not always equally far.
            snapshot = await waiting.look(
                self._hub, task_id, tenant, functools.partial(_moved_on, snapshot), wait_s=AGAIN_S
            )
            answer = await self._of(snapshot) if time.monotonic() < ask_until else None
        if answer is None:
            raise Problem("no-answer", retry_after_s=RETRY_S)
        return encode(_view(answer))

    async def _of(self, snapshot: Snapshot) -> StackAnswer | None:
        record = snapshot.record
        if record.status not in _RUNNING:
            raise Problem("not-running", f"The task is {record.status}.", task_status=record.status)
        key = record.id, record.epoch
        if (flight := self._flights.get(key)) is None:
            flight = self._flights[key] = shared(self._ask(record.id, record.worker))
            flight.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(flight)

    def _keep(self, key: tuple[str, int], done: "asyncio.Task[StackAnswer | None]") -> None:
        told = not done.cancelled() and done.exception() is None and done.result()
        keep_s = SHARED_S if told and told.reason != "ended" else 0
        asyncio.get_running_loop().call_later(keep_s, self._flights.pop, key, None)

    async def _ask(self, task_id: str, worker_id: str) -> StackAnswer | None:
        """None: the supervisor does not listen, or not answer in time."""
        request = secrets.token_hex(8)
        asked: asyncio.Future[StackAnswer] = asyncio.get_running_loop().create_future()
        self._asked[request] = asked
        try:
            inbox = keys.inbox(self._store.partition_of(task_id), worker_id)
            if not await self._store.notify(inbox, f"stack {task_id} {request} {self._hub.mailbox}"):
                return None
            async with asyncio.timeout(ANSWER_S):
                return await asked
        except TimeoutError:
            return None
        finally:
            del self._asked[request]

    def _heard(self, mail: bytes) -> None:
        request, _, body = mail.partition(b" ")
        if (asked := self._asked.get(request.decode("ascii", "replace"))) is None or asked.done():
            return  # too late
        try:
            asked.set_result(_answer(body))
        except msgspec.DecodeError as error:
            logger.warning("an answer about a stack cannot be read", error=str(error))


def _moved_on(before: Snapshot, now: Snapshot) -> bool:
    return now.record.status not in _RUNNING or now.record.epoch != before.record.epoch


def _view(answer: StackAnswer) -> StackView:
    return StackView(
        task_id=answer.task_id,
        attempt=answer.attempt,
        worker=answer.worker,
        taken_at=at(answer.taken_at_ms),
        source=answer.source,
        shared=answer.shared,
        threads=answer.threads,
        text=None if answer.threads is None else stacks.text(answer.threads),
        reason=answer.reason,
    )

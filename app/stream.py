"""`GET /tasks/{id}/events`: snapshot, then every event exactly once, then `end`; resumes by Last-Event-ID."""

import asyncio
import random
import re
from collections.abc import AsyncIterator

import msgspec
import structlog
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from app.hub import BACKUP_S, EVENTS_A_READ, Hub, Watch
from app.snapshots import Snapshot
from app.view import Progress, encode, progress_view
from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable, TaskNotFound
from taskgate.contract.models import Event
from taskgate.contract.states import FINAL
from taskgate.contract.store import Store

logger = structlog.get_logger()

LIFE_S = 3_600.0
"""Then a stream ends and its client resumes, so that streams spread over new processes."""

RETRY_MS = (2_000, 4_000)
_EVENT_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_NOT_LOOKED = ""
_HEADERS = {"Cache-Control": "no-cache, no-store, no-transform"}


def is_event_id(text: str) -> bool:
    return _EVENT_ID.fullmatch(text) is not None and all(int(part) < 1 << 64 for part in text.split("-"))


class Response(EventSourceResponse):
    """A stream whose client may stop reading: then it is let go."""

    def __init__(self, blocks: AsyncIterator[bytes]) -> None:
        super().__init__(blocks, headers=_HEADERS, ping=15, send_timeout=15, shutdown_grace_period=2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            logger.info("a client stopped reading its stream", path=scope["path"])


class Stream:
    """What one client is sent. `cursor`: the last event that it has; None: it starts with a snapshot.

    `gap`: it names an event that is not kept, so it may have missed some.
    """

    def __init__(self, hub: Hub, store: Store, *, task_id: str, tenant: str, cursor: str | None, gap: bool) -> None:
        self._hub = hub
        self._store = store
        self._task_id = task_id
        self._tenant = tenant
        self._cursor = cursor
        self._gap = gap
        self._version = -1
        """Up to here everything was sent."""
        self._floor = -1
        """Version of the snapshot it began with: what happened before is not told again."""
        self._progress = b""
        self._health: str | None = _NOT_LOOKED
        self._ended = False

    async def blocks(self) -> AsyncIterator[bytes]:
        # Each client comes back after another time: a gateway that stops lets many go at once.
        retry = b"retry: %d\r\n" % random.randint(*RETRY_MS)
        ends_at = asyncio.get_running_loop().time() + LIFE_S * random.uniform(1, 1.1)
        async with self._hub.watch(self._task_id, self._tenant) as watch:
            while True:
                generation = watch.generation
                try:
                    async for block in self._round(watch):
                        yield retry + block
                        retry = b""
                except TaskNotFound:
                    return  # purged while it was watched
                except (StoreUnavailable, OutcomeUnknown):
                    pass  # the next look will tell; the stream itself is well
                if self._ended or self._hub.draining or asyncio.get_running_loop().time() > ends_at:
                    return
                await watch.wait(generation, BACKUP_S * random.uniform(0.8, 1.2))

    async def _round(self, watch: Watch) -> AsyncIterator[bytes]:
        """Everything new since the last round, the state read first and the events after it."""
        if self._gap:
            yield _block("gap", b'{"detail":"events may be missing before this point"}')
            self._gap = False
        if self._cursor is None:
            last = await self._store.last_event_id(self._task_id)
            snapshot = await self._hub.snapshots.fresh(self._task_id, self._tenant)
            self._begin(snapshot, last)
            # Of a task that has ended, only the end carries the id: whoever sends that one back has seen it.
            yield _block("snapshot", _with_seq(snapshot), None if snapshot.record.status in FINAL else last)
        else:
            snapshot = await watch.snapshot()
        told = False
        while snapshot.record.version != self._version:
            read = await watch.events(self._cursor or "0-0")
            known = [event for event in read if event.seq <= snapshot.record.version]
            ended = snapshot.record.status in FINAL and len(known) == len(read) < EVENTS_A_READ
            for event in known[:-1] if ended else known:
                told = told or event.name in ("status", "progress")
                self._cursor = event.id
                if event.name == "custom" or event.seq > self._floor:
                    yield _block(event.name, _event_data(event), event.id)
            if ended:
                for block in self._end(snapshot, known[-1] if known else None):
                    yield block
                return
            if len(known) == len(read) < EVENTS_A_READ:
                self._version = snapshot.record.version
            elif len(known) < len(read):
                watch.wake()  # it moved on between the two reads
                snapshot = await watch.snapshot()
        for block in self._between(snapshot, told=told):
            yield block

    def _begin(self, snapshot: Snapshot, last: str | None) -> None:
        self._cursor = last or "0-0"
        self._floor = snapshot.record.version
        self._progress = snapshot.record.progress
        self._health = snapshot.record.seen_health()

    def _end(self, snapshot: Snapshot, last: Event | None) -> list[bytes]:
        """The last event without its id, and `end` with it: a client that misses the end asks for it again."""
        self._ended = True
        blocks = []
        if last is not None and last.seq > self._floor:
            blocks.append(_block(last.name, _event_data(last)))
        event_id = last.id if last is not None else self._cursor
        return [*blocks, _block("end", _with_seq(snapshot), None if event_id == "0-0" else event_id)]

    def _between(self, snapshot: Snapshot, *, told: bool) -> list[bytes]:
        """What the stream in Redis does not hold, sent without an id: live progress, a change of health."""
        record = snapshot.record
        health, progress = record.seen_health(), record.progress
        blocks = []
        if not told and progress and progress != self._progress:
            data = encode({"seq": record.version, "attempt": record.attempt, **_members(progress_view(record))})
            blocks.append(_block("progress", data))
        if health != self._health and self._health != _NOT_LOOKED:
            blocks.append(_block("snapshot", _with_seq(snapshot)))
        self._health, self._progress = health, progress
        return blocks


def _block(event: str, data: bytes, event_id: str | None = None) -> bytes:
    head = f"id: {event_id}\r\nevent: {event}\r\n" if event_id else f"event: {event}\r\n"
    return b"%sdata: %s\r\n\r\n" % (head.encode(), data.translate(None, b"\r\n"))


def _event_data(event: Event) -> bytes:
    inner = event.data.strip()[1:-1].strip()
    return b'{"seq":%d%s%s}' % (event.seq, b"," if inner else b"", inner)


def _with_seq(snapshot: Snapshot) -> bytes:
    return b'{"seq":%d,%s' % (snapshot.record.version, snapshot.body[1:])


def _members(progress: Progress | None) -> dict[str, object]:
    return {} if progress is None else msgspec.structs.asdict(progress)

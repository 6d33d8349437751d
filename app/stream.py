"""`GET /tasks/{id}/events`: snapshot, then every event exactly once, then `end`; resumes by Last-Event-ID."""

import asyncio
import random
import re
from collections.abc import AsyncGenerator

from app.errors import Problem
from app.hub import Hub, Watch
from app.sse import Bell, EventStream
from app.told import GAP, Block, From, Place, Told, begin, joined, own_end
from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable, TaskNotFound
from taskgate.contract.models import position
from taskgate.contract.store import Store

LIFE_S = 3_600.0
"""Then a stream ends and its client resumes, so that streams spread over new processes."""

GONE = (TaskNotFound, Problem)
"""What reads of a task raise that is not there, or no longer."""

RETRY_MS = (2_000, 4_000)
_EVENT_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


def is_event_id(text: str) -> bool:
    return _EVENT_ID.fullmatch(text) is not None and all(int(part) < 1 << 64 for part in text.split("-"))


async def open_stream(
    hub: Hub, store: Store, *, task_id: str, tenant: str, seen: str | None, start: From
) -> EventStream | None:
    """The stream of a task for a client that has `seen` that event; None: it has seen the end.

    Raises:
        TaskNotFound: no such task of that tenant.
        Problem: `gone`.
    """
    snapshot = await hub.snapshots.fresh(task_id, tenant)
    kept = await hub.kept(task_id)
    known = (
        seen is not None
        and is_event_id(seen)
        and not kept.lacks(position(seen))
        and await store.has_event(task_id, seen)
    )
    if known and snapshot.has_ended() and seen == kept.last:
        return None
    stream = Stream(
        hub,
        task_id=task_id,
        tenant=tenant,
        cursor=seen if known else None,
        start="0-0" if start is not From.NOW or kept.last is None else kept.last,
        every=start is From.START,
        gap=not known and (seen is not None or (start is not From.NOW and kept.since is not None)),
    )
    return EventStream(stream, hub.pulse, leaving=lambda: hub.draining)


class Stream:
    """What one client is sent. `cursor`: the last event that it has; None: it starts with a snapshot.

    `start`: which events that one's story begins after; `every`: see `begin`; `gap`: it may have missed some.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        task_id: str,
        tenant: str,
        cursor: str | None,
        start: str = "0-0",
        every: bool = False,
        gap: bool = False,
    ) -> None:
        self.bell = Bell()
        self.closing = self.silent = False
        self._hub = hub
        self._task_id = task_id
        self._tenant = tenant
        self._cursor = cursor
        self._start = start
        self._every = every
        self._gap = gap

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + LIFE_S * random.uniform(1, 1.1)
        head = opening(self._gap)
        told = None if self._cursor is None else Told([], Place(self._cursor))
        async with self._hub.watch(self._task_id, self._tenant, self.bell) as watch:
            while not self.closing:
                turn = watch.turn
                data, again = b"", False
                try:
                    if told is None:
                        data, told = await self._first(watch)
                    else:
                        data, told = await watch.news(told.place)
                        self._hub.count(told.blocks)
                    again = told.again
                except GONE:
                    return  # purged while it was watched
                except (StoreUnavailable, OutcomeUnknown):
                    pass  # the next look will tell; the stream itself is well
                if data:
                    yield head + data
                    head = b""
                if self._hub.draining or loop.time() > ends_at or (told is not None and told.ended):
                    return
                while not again and turn == watch.turn and not self.closing:
                    await self.bell.wait()
                    if self.silent:
                        self.silent = False
                        yield b""

    async def _first(self, watch: Watch) -> tuple[bytes, Told]:
        """The snapshot, and what the events tell besides. Resuming goes on where both end."""
        first = begin(await watch.snapshot(), every=self._every)
        _, told = await watch.news(first.place._replace(cursor=self._start))
        blocks = [*first.blocks, *told.blocks]
        if told.ended:
            # Of a task that has ended, only the end carries the last id: whoever sends that one back has seen it.
            blocks = own_end(blocks)
        elif told.place.cursor != "0-0":
            blocks[-1] = blocks[-1]._replace(event_id=told.place.cursor)
        self._hub.count(blocks)
        return joined(blocks), told


def opening(gap: bool) -> bytes:
    """Each client comes back after another time: a gateway that stops lets many go at once."""
    retry = b"retry: %d\r\n" % random.randint(*RETRY_MS)
    return retry + joined([Block("gap", GAP)]) if gap else retry

"""`GET /events?task=a&task=b`: many tasks on one stream, in the order of Redis' clock, so that one id resumes all.

Nothing older than what was sent can follow: Redis' time is read before the events are, and what is not older than that
waits for the next look. So a client that resumes gets everything from the millisecond of its id on again, and nothing
of what it has except in that one.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from app.hub import Hub, Watch
from app.snapshots import Snapshot
from app.sse import Bell, EventStream
from app.stream import GONE, LIFE_S, is_event_id, opening
from app.told import GAP, Block, From, Place, Told, begin, joined, news, of_task
from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.models import EventPage, Kept, position
from taskgate.contract.store import Store

TASKS_MAX = 100
_NO_TASK = b'{"detail":"there is no such task, or no longer"}'
_LAST = (1 << 64) - 1
_FIRST, _FINALLY = (0, 0), (1 << 64, 0)
_REST_S = 0.0005
"""For each task, between two looks: what many tell within that time is read together."""

_CLOCK_WENT_BACK_MS = 1_000
"""Ids so far ahead of Redis' clock are not waited for."""

Position = tuple[int, int]


async def open_merged(
    hub: Hub, store: Store, *, task_ids: Sequence[str], tenant: str, seen: str | None, start: From
) -> EventStream | None:
    """The stream of these tasks for a client that has `seen` that id; None: it has seen the end of all.

    Who resumes follows those that are still there, and is told which are not.

    Raises:
        TaskNotFound: no such task of that tenant: any of them or, for who resumes, all.
        Problem: `gone`, likewise.
    """
    unique = list(dict.fromkeys(task_ids))
    snapshots, gone = await _there(hub, unique, tenant, some=seen is not None)
    unique = [task_id for task_id in unique if task_id not in gone]
    kept = await asyncio.gather(*map(hub.kept, unique))
    now_ms = await store.now_ms()
    at = position(seen) if seen is not None and is_event_id(seen) else None
    if at is not None and not 0 < at[0] <= now_ms:
        at = None  # nobody was given that one
    ended = all(snapshot.has_ended() for snapshot in snapshots)
    if at is not None and ended and all(_last(each) < (at[0] + (at[1] == _LAST), 0) for each in kept):
        return None
    parts = {
        task_id: _part(each, at=at, whole=start is not From.NOW, now_ms=now_ms)
        for task_id, each in zip(unique, kept, strict=True)
    }
    stream = Merged(hub, tenant, parts, every=start is From.START, gap=seen is not None and at is None, gone=gone)
    return EventStream(stream, hub.pulse, leaving=lambda: hub.draining)


async def _there(hub: Hub, task_ids: Sequence[str], tenant: str, *, some: bool) -> tuple[list[Snapshot], list[str]]:
    """Their states, and the ids of those that are gone: with `some` one that is there is enough."""
    found = await asyncio.gather(*(hub.snapshots.fresh(each, tenant) for each in task_ids), return_exceptions=True)
    snapshots = [each for each in found if isinstance(each, Snapshot)]
    gone = []
    for task_id, each in zip(task_ids, found, strict=True):
        if isinstance(each, BaseException):
            if not (some and snapshots and isinstance(each, GONE)):
                raise each
            gone.append(task_id)
    return snapshots, gone


def _part(kept: Kept, *, at: Position | None, whole: bool, now_ms: int) -> "Part":
    if at is None:
        return Part(Place("0-0" if whole else _just_before(now_ms)), fresh=True, gap=whole and kept.since is not None)
    if kept.lacks((at[0], 0)):
        return Part(Place(), fresh=True, gap=True)
    return Part(Place(f"{at[0]}-{_LAST}" if at[1] == _LAST else _just_before(at[0])), resumed=True)


class Part(NamedTuple):
    """Where one of the tasks stands. `fresh`: its snapshot is still to be sent; `resumed`: nothing was sent yet."""

    place: Place
    fresh: bool = False
    resumed: bool = False
    gap: bool = False


class Merged:
    """What one client is sent of several tasks."""

    def __init__(
        self,
        hub: Hub,
        tenant: str,
        parts: dict[str, Part],
        *,
        every: bool = False,
        gap: bool = False,
        gone: Sequence[str] = (),
    ) -> None:
        self.bell = Bell()
        self.closing = self.silent = False
        self._hub = hub
        self._tenant = tenant
        self._parts = parts
        """Those that have not ended."""
        self._every = every
        self._gap = gap
        self._gone = list(gone)
        """Those that are not there any more, of which nobody was told yet."""
        self._seen: Position = (0, 0)
        """Newest event of all tasks."""

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + LIFE_S * random.uniform(1, 1.1)
        head = opening(self._gap)
        async with contextlib.AsyncExitStack() as stack:
            watches = {
                task_id: await stack.enter_async_context(self._hub.watch(task_id, self._tenant, self.bell))
                for task_id in self._parts
            }
            while self._parts and not self.closing and not self._hub.draining and loop.time() < ends_at:
                generations = _generations(watches)
                data, again = b"", False
                with contextlib.suppress(StoreUnavailable, OutcomeUnknown):  # the next look will tell
                    data, again = await self._round(watches)
                if data:
                    yield head + data
                    head = b""
                await asyncio.sleep(_REST_S * len(self._parts))
                while self._parts and not again and generations == _generations(watches) and not self.closing:
                    await self.bell.wait()
                    if self.silent:
                        self.silent = False
                        yield b""

    async def _round(self, watches: dict[str, Watch]) -> tuple[bytes, bool]:
        """What is new of all; and whether there is more already."""
        snapshots = await self._snapshots(watches)
        read = await asyncio.gather(*(self._hub.news(each, self._parts[each].place.cursor) for each in snapshots))
        limit = min((now_ms for now_ms, _ in read), default=0), 0
        for (task_id, snapshot), (_, page) in zip(snapshots.items(), read, strict=True):
            unknown = next((event for event in page.events if event.seq > snapshot.record.version), None)
            if unknown is not None:
                watches[task_id].wake()  # it moved on between the two reads
                limit = min(limit, position(unknown.id))
            elif page.events and not page.whole:
                ms, n = position(page.events[-1].id)
                limit = min(limit, (ms, n + 1))
        sure = {task_id: _until(page, limit) for task_id, (_, page) in zip(snapshots, read, strict=True)}
        lost = {each: await self._hub.lost(each, self._parts[each].place, page) for each, page in sure.items()}
        placed: list[tuple[Position, Block]] = []
        for task_id, page in sure.items():  # nothing is waited for any more: all of a round is told, or nothing
            told = self._told(task_id, snapshots[task_id], page, lost=lost[task_id])
            placed += [(at, of_task(block, task_id)) for at, block in told]
        placed.sort(key=lambda pair: pair[0])
        gone = [of_task(Block("gone", _NO_TASK), task_id) for task_id in self._gone]
        self._gone = []
        blocks = [*gone, *self._with_ids([block for _, block in placed], limit)]
        self._hub.count(blocks)
        return joined(blocks), not all(page.whole for page in sure.values())

    async def _snapshots(self, watches: dict[str, Watch]) -> dict[str, Snapshot]:
        found = await asyncio.gather(*(watches[each].snapshot() for each in self._parts), return_exceptions=True)
        snapshots = {}
        for task_id, each in zip(list(self._parts), found, strict=True):
            if isinstance(each, GONE):
                del self._parts[task_id]  # purged while it was watched
                self._gone.append(task_id)
            elif isinstance(each, BaseException):
                raise each
            else:
                snapshots[task_id] = each
        return snapshots

    def _told(self, task_id: str, snapshot: Snapshot, page: EventPage, *, lost: bool) -> list[tuple[Position, Block]]:
        """What is new of one, each with its position: the state first, an end behind its last event, others last."""
        part = self._parts[task_id]
        gap = part.gap or lost
        first = begin(snapshot, every=self._every) if part.fresh or gap else Told([], part.place)
        told = news(first.place._replace(cursor=part.place.cursor), snapshot, page)
        self._seen = max(self._seen, position(told.place.cursor))
        self._parts[task_id] = Part(told.place)
        if told.ended:
            del self._parts[task_id]
            if part.resumed and not page.events:
                return []  # its end came before the id from which this client resumes
        placed = [(_FIRST, block) for block in [*([Block("gap", GAP)] if gap else []), *first.blocks]]
        for block in told.blocks:
            at = _FINALLY if block.event_id is None else position(block.event_id)
            placed.append((at, block._replace(event_id=None) if block.name == "end" else block))
        return placed

    def _with_ids(self, blocks: list[Block], limit: Position) -> list[Block]:
        """The last of them says where to resume; that everything has been seen only the very last one."""
        if not blocks or blocks[-1].event_id is not None:
            return blocks
        if self._parts:
            return [*blocks[:-1], blocks[-1]._replace(event_id=f"{limit[0]}-0")]
        return [*blocks[:-1], blocks[-1]._replace(event_id=f"{self._seen[0]}-{_LAST}")]


def _until(page: EventPage, limit: Position) -> EventPage:
    """The events before `limit`: older ones cannot come any more, of any task."""
    ahead = limit[0] + _CLOCK_WENT_BACK_MS, 0
    sure = list(itertools.takewhile(lambda event: not limit <= position(event.id) < ahead, page.events))
    return EventPage(sure, page.whole and len(sure) == len(page.events))


def _generations(watches: dict[str, Watch]) -> list[int]:
    return [watch.generation for watch in watches.values()]


def _last(kept: Kept) -> Position:
    return (0, 0) if kept.last is None else position(kept.last)


def _just_before(ms: int) -> str:
    """Everything from that millisecond on comes after it."""
    return f"{ms - 1}-{_LAST}"

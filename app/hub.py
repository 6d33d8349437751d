"""Wake-ups for watched tasks: one pub/sub connection per process, however many streams are open."""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import redis.asyncio as redis
import structlog
from redis.exceptions import RedisError

from app.access import Access
from app.shared import shared
from app.snapshots import Snapshot, Snapshots
from app.sse import Bell, Pulse
from app.told import GAP, Block, Place, Told, begin, joined, news, own_end
from taskgate.contract import keys
from taskgate.contract.group import Group
from taskgate.contract.models import EventPage, Kept, position
from taskgate.contract.store import Store

logger = structlog.get_logger()

EVENTS_A_READ = 100

BACKUP_S = 5.0
"""A watched task is looked at that often at least, should a wake-up be lost."""

_SURE = 32
"""Fewer events than that cannot have pushed out others between two reads."""

_SILENCE_S = 10.0
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


class Watch:
    """One watched task, shared by its streams. `generation` moves with each wake-up; what is read of one is shared.

    Streams wait for their bells and for `turn`: they are rung when what most of them want next has been read.
    """

    def __init__(self, task_id: str, tenant: str, hub: "Hub") -> None:
        self.task_id = task_id
        self.users = 0
        self.bells: set[Bell] = set()
        self.generation = self.turn = 0
        self.moved_at = time.monotonic()
        self._tenant = tenant
        self._hub = hub
        self._moved = asyncio.Event()
        self._snapshot: asyncio.Task[Snapshot] | None = None
        self._news: dict[Place, asyncio.Task[tuple[bytes, Told]]] = {}
        self._common: Place | None = None
        """Where those are that were told last."""
        self._reading = False

    def wake(self) -> None:
        self.generation += 1
        self.moved_at = time.monotonic()
        self._snapshot = None
        self._news = {}
        self._moved.set()
        self._moved = asyncio.Event()
        if self.bells and not self._reading:
            self._read_on()

    def ring(self) -> None:
        self.turn += 1
        for bell in self.bells:
            bell.ring()

    def _read_on(self) -> None:
        """Read once what comes next for most, then ring: they find it done, and none of them waits for it by itself."""
        if self._common is None:
            self.ring()
            return
        reading = self._news[self._common] = shared(self._read(self._common))
        self._reading = True

        def read(_: object) -> None:
            self._reading = False
            self.ring()  # woken meanwhile, they find nothing and read anew

        reading.add_done_callback(read)

    async def wait(self, seen: int, within_s: float) -> None:
        """Return when the generation is past `seen`; after `within_s` in any case, and then it has moved too."""
        if self.generation > seen:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._moved.wait()
        except TimeoutError:
            if self.generation == seen:
                self.wake()

    async def snapshot(self) -> Snapshot:
        """As of this generation or later. Raises TaskNotFound once the task is purged."""
        if self._snapshot is None:
            self._snapshot = shared(self._hub.snapshots.fresh(self.task_id, self._tenant))
        return await asyncio.shield(self._snapshot)

    async def news(self, place: Place) -> tuple[bytes, Told]:
        """What follows that place, as of this generation or later, ready to send: read and encoded once for all."""
        reading = self._news.get(place)
        if reading is None:
            reading = self._news[place] = shared(self._read(place))
        return reading.result() if reading.done() else await asyncio.shield(reading)

    async def _read(self, place: Place) -> tuple[bytes, Told]:
        snapshot = await self.snapshot()
        _, page = await self._hub.news(self.task_id, place.cursor)
        opened: list[Block] = []
        if await self._hub.lost(self.task_id, place, page):
            first = begin(snapshot)
            opened, place = [Block("gap", GAP), *first.blocks], first.place._replace(cursor=place.cursor)
        found = news(place, snapshot, page)
        if found.again and page.whole:
            self.wake()  # it moved on between the two reads
        self._common = found.place
        blocks = [*opened, *(own_end(found.blocks) if found.ended else found.blocks)]
        return joined(blocks), found


class Hub:
    """Follows the change channels of watched tasks; `run` until cancelled."""

    def __init__(self, client: redis.Redis, store: Store, snapshots: Snapshots, access: Access | None = None) -> None:
        self.snapshots = snapshots
        self.draining = False
        self.mailbox = keys.gateway(0, secrets.token_hex(8))
        """Channel of this process, on which supervisors answer it; the subscription always has that one."""
        self.on_mail: Callable[[bytes], None] = lambda _: None
        self._deletions = [keys.deletions(partition).encode() for partition in store.partitions]
        self._access = access
        self._access_channels = [] if access is None else [keys.access(0).encode()]
        self._client = client
        self._store = store
        self._watches: dict[bytes, Watch] = {}
        self._pubsub: redis.client.PubSub | None = None
        self._listening: asyncio.Task[None] | None = None
        self._telling = asyncio.Lock()
        self._tells: Group[tuple[bytes, bool], None] = Group(self._tell)
        self._reads: Group[tuple[str, str], tuple[int, EventPage]] = Group(self._read_news)
        self._keeps: Group[str, Kept] = Group(store.kept_events)
        self.pulse = Pulse()
        self.sent: Counter[str] = Counter()
        """Events on streams, by name."""

    @contextlib.asynccontextmanager
    async def watch(self, task_id: str, tenant: str, bell: Bell | None = None) -> AsyncIterator[Watch]:
        """Wake-ups for a task from now on: subscribe first, read then, and nothing falls between.

        `bell`: is rung by each.
        """
        channel = keys.changes(self._store.partition_of(task_id), task_id).encode()
        watch = self._watches.get(channel)
        if watch is None:
            watch = self._watches[channel] = Watch(task_id, tenant, self)
            self.pulse.add(self._look_behind)
        watch.users += 1
        if bell is not None:
            watch.bells.add(bell)
        try:
            if watch.users == 1:
                await self._tells((channel, True))
            yield watch
        finally:
            watch.users -= 1
            if bell is not None:
                watch.bells.discard(bell)
            if watch.users == 0:
                del self._watches[channel]
                if not self._watches:
                    self.pulse.remove(self._look_behind)
                self._tells((channel, False))

    def count(self, blocks: Iterable[Block]) -> None:
        """These are sent to a client."""
        for block in blocks:
            self.sent[block.name] += 1

    def drain(self) -> None:
        """End all streams: they see `draining` at once."""
        self.draining = True
        for watch in list(self._watches.values()):
            watch.wake()
            watch.ring()

    async def news(self, task_id: str, after: str) -> tuple[int, EventPage]:
        """Up to EVENTS_A_READ events after that id, and Redis' time before they were read; many are read together."""
        return await self._reads((task_id, after))

    async def lost(self, task_id: str, place: Place, page: EventPage) -> bool:
        """Whether events between that place and the page may have been dropped."""
        if len(page.events) < _SURE or (place.floor >= 0 and place.cursor == "0-0"):
            return False  # of what was gone before a stream began, its opening tells
        return (await self.kept(task_id)).lacks(position(place.cursor))

    async def kept(self, task_id: str) -> Kept:
        """Which part of its events is there; many are asked about together."""
        return await self._keeps(task_id)

    async def run(self) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            self._listening = asyncio.ensure_future(self._listen())
            try:
                await asyncio.wait([self._listening])
            finally:
                self._pubsub = None
                self._listening.cancel()
                [ended] = await asyncio.gather(self._listening, return_exceptions=True)
            if not isinstance(ended, RedisError | OSError | asyncio.CancelledError):
                logger.error("the listener for wake-ups failed", exc_info=ended)
            elif self._watches:
                logger.warning("lost the connection for wake-ups", error=str(ended), streams=len(self._watches))
            failures = 0 if time.monotonic() - started > _SILENCE_S else failures + 1
            await asyncio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])

    async def _listen(self) -> None:
        """One connection's life: subscribe to all that is watched, then pass wake-ups on."""
        async with self._client.pubsub() as pubsub:
            async with self._telling:
                await pubsub.subscribe(self.mailbox, *self._access_channels, *self._deletions, *self._watches)
                self._pubsub = pubsub
            silent = False
            while True:
                message = await pubsub.get_message(timeout=_SILENCE_S)
                if message is None and silent:
                    raise RedisError("no answer to a ping")
                silent = message is None
                if message is None:
                    await pubsub.ping()
                elif (watch := self._watches.get(message["channel"])) is not None:
                    # Also when it confirms a subscription: what happened before, nobody was told of.
                    watch.wake()
                elif self._access is not None and message["channel"] in self._access_channels:
                    self._hear(self._access, message)
                elif message["type"] == "message" and message["channel"] in self._deletions:
                    self.snapshots.drop(message["data"].decode())
                elif message["type"] == "message" and message["channel"] == self.mailbox.encode():
                    self.on_mail(message["data"])

    @staticmethod
    def _hear(access: Access, message: dict[str, Any]) -> None:
        if message["type"] == "message":
            access.changed(message["data"].decode())
        else:
            access.lost_track()  # subscribed anew: what was said meanwhile was not heard

    async def _tell(self, changes: Sequence[tuple[bytes, bool]]) -> list[None]:
        """Subscribe to what is watched by now, leave what is not: all that came during the last call, or the streams
        that open would wait for each other. Who asked may have gone: a command given up midway cuts all off.
        """
        async with self._telling:
            wanted = [channel for channel, to_watch in changes if to_watch and channel in self._watches]
            unwanted = [channel for channel, to_watch in changes if not to_watch and channel not in self._watches]
            if self._pubsub is not None:
                try:
                    if wanted:
                        await self._pubsub.subscribe(*wanted)
                    if unwanted:
                        await self._pubsub.unsubscribe(*unwanted)
                except (RedisError, OSError):
                    if self._listening is not None:
                        self._listening.cancel()  # the next connection subscribes to all that is watched then
        return [None] * len(changes)

    def _look_behind(self, _: float) -> None:
        now = time.monotonic()
        for watch in list(self._watches.values()):
            if now - watch.moved_at > BACKUP_S:
                watch.wake()

    async def _read_news(self, asked: Sequence[tuple[str, str]]) -> list[tuple[int, EventPage]]:
        now_ms, pages = await self._store.news(asked, count=EVENTS_A_READ)
        return [(now_ms, page) for page in pages]

"""Claiming: as many tasks as there are free slots, at once when something waits, silent when nothing does."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from taskgate.contract.connection import BLOCK_S
from taskgate.contract.errors import NoSuchWorker, OutcomeUnknown, StoreUnavailable
from taskgate.contract.models import NEIGHBOUR_LIMIT, Claimed, Served
from taskgate.contract.store import Store
from workers.lease import Lease
from workers.turns import Turns

log = structlog.get_logger()

SYNC, ASYNC, FRESH, ALONE = "sync", "async", "fresh", "alone"


class Room(NamedTuple):
    """Free slots: of sync children, of sync children that have run nothing, of async children, of those for one."""

    sync: int
    virgin: int
    asynchronous: int
    alone: int
    fresh_takes: int = 1
    """So many of `sync` go with each child that has run nothing."""


class Claims:
    """One loop that claims, one that blocks on the wake markers of what there is room for.

    While there is more work than room, slots that become free drive the claims and nobody blocks on a marker; only a
    claim that got less than it asked for makes its kind hungry. A claim may run while the blocking pop is under way:
    when there is room for more than the pop waits for, a nudge ends it. A marker taken without room left is put back
    by a claim of nothing in its partition, for the other supervisors.
    """

    def __init__(
        self,
        store: Store,
        blocking: Store,
        lease: Lease,
        *,
        worker_id: str,
        lease_ms: int,
        room: Callable[[], Room],
        take: Callable[[Sequence[Claimed], int], None],
        fresh_waits: Callable[[bool], None] = lambda _: None,
        shares: str = "",
    ) -> None:
        """`fresh_waits` is told whether tasks that need a child which has run nothing wait for one."""
        self._store = store
        self._blocking = blocking
        self._lease = lease
        self._worker_id = worker_id
        self._lease_ms = lease_ms
        self._room = room
        self._take = take
        self._tell_fresh_waits = fresh_waits
        self._fresh_waits: set[int] = set()
        """Partitions where they do."""
        self._shares = shares
        self._served: list[Served] = []
        self._turns = Turns()
        self._kinds: dict[str, str] = {}
        self._hungry: set[str] = set()
        self._wake = asyncio.Event()
        self._waiting_for: frozenset[Served] = frozenset()
        self._marked: set[int] = set()
        """Partitions whose markers were taken, with no claim there since."""
        self.stopped = False

    def serve(self, served: Sequence[Served]) -> None:
        """What may be claimed."""
        self._served = list(served)
        self._kinds = {each.type: each.kind for each in served}
        self._wake.set()

    def try_now(self) -> None:
        """A slot is free, or something may wait."""
        self._wake.set()

    async def run(self) -> None:
        """Claim until cancelled."""
        while True:
            await self._wake.wait()
            await self._lease.contact.wait()
            self._wake.clear()
            try:
                await self._claim_all()
                if not self._wanted() <= self._waiting_for:
                    await self._store.nudge(self._worker_id)
            except NoSuchWorker:
                log.warning("reaped by another supervisor; a beat comes before the next claim")
                self._lease.silent()
                self._wake.set()
            except (StoreUnavailable, OutcomeUnknown) as error:
                log.warning("claim was not answered", error=str(error))
                self._lease.silent()
                self._wake.set()

    async def listen(self) -> None:
        """Block on the markers until cancelled."""
        while True:
            await self._lease.contact.wait()
            self._waiting_for = self._wanted()
            marks = [(partition, each) for partition in self._store.partitions for each in sorted(self._waiting_for)]
            try:
                partition = await self._blocking.wait_for_work(marks, worker_id=self._worker_id, timeout_s=BLOCK_S)
                if partition is not None:
                    self._marked.add(partition)
                    self._wake.set()
            except StoreUnavailable as error:
                log.warning("wake markers cannot be watched", error=str(error))
                self._lease.silent()

    async def _claim_all(self) -> None:
        if self.stopped:
            return
        some_sated = True
        while some_sated:
            some_sated = False
            for partition in self._turns.partitions(self._store.partitions, _free(self._room())):
                if self._lease.holds and await self._claim(partition):
                    some_sated = True

    async def _claim(self, partition: int) -> bool:
        """Whether some kind got all that it asked for, so that more may wait."""
        room = self._room()
        asked = _free(room)
        if not self._served or not (asked or partition in self._marked):
            return False
        self._turns.asked(partition, asked)
        self._marked.discard(partition)  # not later: another may be taken while the claim is under way
        # What an answer past this deadline tells of may have been reaped meanwhile, whatever beats have come since.
        deadline_ns = self._lease.deadline_ns
        claimed = await self._store.claim(
            partition,
            self._worker_id,
            served=self._turns.served(self._served, partition),
            free_sync=asked.get(SYNC, 0),
            free_fresh=asked.get(FRESH, 0),
            fresh_takes=room.fresh_takes,
            free_async=asked.get(ASYNC, 0),
            free_alone=asked.get(ALONE, 0),
            lease_ms=self._lease_ms,
            shares=self._shares,
        )
        got: Counter[str] = Counter()
        for task in claimed:
            kind = self._kind(task)
            got[kind] += 1
            self._turns.given(partition, task.spec.queue, kind)
        self._take(claimed, deadline_ns)
        (self._fresh_waits.add if claimed.fresh_waits else self._fresh_waits.discard)(partition)
        self._tell_fresh_waits(bool(self._fresh_waits))
        sated = {kind for kind, free in asked.items() if got[kind] >= free}
        self._hungry = (self._hungry | asked.keys()) - sated
        return bool(sated)

    def _kind(self, task: Claimed) -> str:
        kind = self._kinds.get(task.spec.type, SYNC)
        return ALONE if kind == ASYNC and task.neighbours >= NEIGHBOUR_LIMIT else kind

    def _wanted(self) -> frozenset[Served]:
        """The markers to block on: there is room, and the last claim found too little."""
        if self.stopped:
            return frozenset()
        room = self._room()
        wanted: set[Served] = set()
        if SYNC in self._hungry and room.sync > 0:
            wanted.update(each for each in self._served if each.kind == SYNC)
        if ASYNC in self._hungry and room.asynchronous > 0:
            wanted.update(each for each in self._served if each.kind == ASYNC)
        if FRESH in self._hungry and _fresh(room) > 0:
            wanted.update(each for each in self._served if each.kind == FRESH)
        return frozenset(wanted)


def _free(room: Room) -> dict[str, int]:
    """Free slots, by kind."""
    slots = {SYNC: room.sync, FRESH: _fresh(room), ASYNC: room.asynchronous, ALONE: room.alone}
    return {kind: free for kind, free in slots.items() if free > 0}


def _fresh(room: Room) -> int:
    return min(room.virgin, room.sync // room.fresh_takes)

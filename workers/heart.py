"""The beat: says in time that this supervisor lives, and takes the answer to whom it concerns."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.models import BeatAnswer, BeatValue, Held, Lost, Served, WorkerInfo
from taskgate.contract.states import ErrorKind
from taskgate.contract.store import Store
from workers.background import Background
from workers.holdings import facts
from workers.lease import Lease
from workers.metrics import Metrics
from workers.slot import boot_ns
from workers.watch import Watch

log = structlog.get_logger()

TRIM_EVERY_S = 30.0
LEAST_PAUSE_S = 0.01
LEAST_RETRY_S = 0.05
SAY_EVERY_S = 5.0
"""How often an outage is logged while it lasts."""


class Speaker(Protocol):
    """What the heart asks before a beat, and tells after it."""

    def describe(self) -> WorkerInfo: ...

    def names(self, partition: int) -> Sequence[Held]: ...

    @property
    def served(self) -> Sequence[Served]: ...

    def heard(self, partition: int, answer: BeatAnswer) -> None: ...


class Heart:
    """Beats every third of the lease on a connection of its own, and reaps whoever stopped beating.

    An unanswered beat is tried again at once: its timeout is a sixth of the lease, and nothing goes before it.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        speaker: Speaker,
        *,
        worker_id: str,
        lease_s: float,
        shares: str = "",
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._lease = lease
        self._speaker = speaker
        self._shares = shares
        self._every_s = lease_s / 3
        self._retry_s = max(LEAST_RETRY_S, lease_s / 30)
        self._worker_id = worker_id
        self._watches = [Watch(worker_id) for _ in store.partitions]
        self._wake = asyncio.Event()
        self._background = Background()
        self._begun_s = self._trimmed_s = time.monotonic()
        self._silent_since_s: float | None = None
        self._metrics = metrics or Metrics()
        self.answered_s = float("-inf")
        """When the last beat was sent that was answered, by the monotonic clock."""
        self._said_s = 0.0

    def now(self) -> None:
        """Beat without waiting for the next turn."""
        self._wake.set()

    def heard(self, partition: int, worker_id: str, value: BeatValue) -> None:
        """Another supervisor has beaten just now."""
        self._watches[partition].heard(worker_id, value, time.monotonic())

    async def run(self) -> None:
        """Beat until cancelled."""
        due = time.monotonic()
        while True:
            self._wake.clear()
            sent_s = time.monotonic()
            self._metrics.late_beats.observe(max(0.0, sent_s - due))
            if await self.beat():
                self.answered_s = sent_s
                self._metrics.beats.observe(time.monotonic() - sent_s)
                due = self._next_turn()
                self._trim_in_turn()
            else:
                due = time.monotonic() + self._retry_s
            await self._pause(due - time.monotonic())

    async def beat(self) -> bool:
        """One beat to every partition; whether all were answered."""
        sent_ns = boot_ns()
        named: set[Held] = set()
        dead: list[tuple[int, str, BeatValue]] = []
        try:
            for partition in self._store.partitions:
                held = self._speaker.names(partition)
                named.update(held)
                answer = await self._store.beat(
                    partition,
                    self._speaker.describe(),
                    held=held,
                    served=self._speaker.served,
                    shares=self._shares,
                )
                self._speaker.heard(partition, answer)
                verdicts = self._watches[partition].look(answer.beats, time.monotonic())
                dead += [(partition, worker_id, watched) for worker_id, watched in verdicts.items()]
            if self._confirms(named):
                self._lease.answered(sent_ns)
            else:
                self._wake.set()
            for each in dead:
                await self._reap(*each)
        except (StoreUnavailable, OutcomeUnknown) as error:
            self._say_silent(error)
            self._lease.contact.clear()
            for watch in self._watches:
                watch.contact_lost()
            return False
        if self._silent_since_s is not None:
            log.info("beats are answered again", silent_s=round(time.monotonic() - self._silent_since_s, 1))
            self._silent_since_s = None
        return True

    def _confirms(self, named: set[Held]) -> bool:
        """Past the deadline everything may have been reaped: then a beat speaks for what it has named, and only if that
        is all there is by now does the lease go on.
        """
        held = (each for partition in self._store.partitions for each in self._speaker.names(partition))
        return self._lease.holds or named.issuperset(held)

    def _say_silent(self, error: Exception) -> None:
        now = time.monotonic()
        if self._silent_since_s is None:
            self._silent_since_s = self._begun_s if self.answered_s == float("-inf") else self.answered_s
        elif now - self._said_s < SAY_EVERY_S:
            return
        self._said_s = now
        log.warning("beats are not answered", error=str(error), silent_s=round(now - self._silent_since_s, 1))

    def _next_turn(self) -> float:
        now = time.monotonic()
        verdicts = [at for watch in self._watches if (at := watch.next_verdict_s()) is not None]
        return max(now + LEAST_PAUSE_S, min([now + self._every_s, *verdicts]))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _reap(self, partition: int, worker_id: str, watched: BeatValue) -> None:
        log.warning("supervisor is dead", dead=worker_id, partition=partition, counter=watched.counter)
        remaining = 1
        while remaining:
            reaped = await self._store.reap(partition, worker_id, watched=watched)
            if reaped is None:
                return
            remaining = reaped.remaining
            for lost in reaped.ended:
                self._ended(worker_id, lost)

    def _ended(self, worker_id: str, lost: Lost) -> None:
        """Nobody else is left to tell of it."""
        self._metrics.ended(lost.spec, lost.status, run_ms=None, error_kind=ErrorKind.LOST)
        log.info(
            "attempt finished",
            outcome=lost.status,
            duration_ms=None,
            error_kind=ErrorKind.LOST,
            **facts(lost.spec, lost.attempt),
            worker_id=worker_id,
            pid=None,
            told_by=self._worker_id,
        )

    def _trim_in_turn(self) -> None:
        if time.monotonic() - self._trimmed_s >= TRIM_EVERY_S:
            self._trimmed_s = time.monotonic()
            self._background.spawn(self._trim())

    async def _trim(self) -> None:
        try:
            for partition in self._store.partitions:
                while await self._store.trim(partition) >= 128:
                    pass
        except (StoreUnavailable, OutcomeUnknown):
            log.info("trim was put off")

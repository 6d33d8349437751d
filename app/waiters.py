"""Submissions that wait for room in their queue (`on_full = "wait"`): held in their order of arrival."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from app.errors import Problem
from taskgate.contract.errors import QueueFull, Refused
from taskgate.contract.group import Group
from taskgate.contract.models import Submission

R = TypeVar("R")

MOST = 1024
MOST_BYTES = 16 * 1024**2
"""Of a process, in all queues: a quarter of what its bodies may hold. What comes then is refused at once."""

LOOK_MIN_S = 0.02
LOOK_MAX_S = 0.25
_AT_ONCE = 128
_FEW = 8
_DRAINING_RETRY_S = 1


class Waiters(Generic[R]):
    """All rows of a process. `groups`: by partition, what asks the script, whose refusals let it be asked again;
    `behind`: the same for those who would have to wait for others, also where there is room.
    """

    def __init__(self, groups: Sequence[Group[Submission, R]], behind: Sequence[Group[Submission, R]]) -> None:
        self._groups = groups
        self._behind = behind
        self._rows: dict[tuple[int, str], _Row[R]] = {}
        self._count = self._bytes = 0
        self._draining = False

    def has_place(self, submission: Submission) -> bool:
        return self._count < MOST and self._bytes + len(submission.payload) <= MOST_BYTES

    def limit(self, partition: int, queue: str) -> str:
        """The limit that others wait for there; "": nobody does, or each only for its tenant's."""
        row = self._rows.get((partition, queue))
        return "" if row is None else row.limit

    async def admitted(self, submission: Submission, partition: int, *, wait_s: float) -> R | None:
        """What was decided on it once there was room; None when there was none in time.

        Raises:
            Problem: the process drains.
        """
        place = partition, submission.queue
        self._count += 1
        self._bytes += len(submission.payload)
        try:
            if place in self._rows and (submission.idempotency_key or submission.unique_key):
                known = await self._behind[partition](submission)
                if not (isinstance(known, Refused) and known.waits):
                    return known  # its key has an answer, for which nobody needs room
            if self._draining:
                raise _draining()
            if place not in self._rows:
                self._rows[place] = _Row(self._groups[partition], lambda: self._rows.pop(place))
            return await self._rows[place].outcome_of(submission, wait_s=wait_s)
        finally:
            self._count -= 1
            self._bytes -= len(submission.payload)

    def drain(self) -> None:
        """Nobody waits any longer; idempotent."""
        self._draining = True
        for row in self._rows.values():
            row.drain()


def _draining() -> Problem:
    return Problem("service-draining", retry_after_s=_DRAINING_RETRY_S)


class _Waiter(Generic[R]):
    """Equal to itself alone."""

    def __init__(self, submission: Submission, until: float) -> None:
        self.submission = submission
        self.until = until
        self.outcome: asyncio.Future[R | None] = asyncio.get_running_loop().create_future()


class _Row(Generic[R]):
    """Those who wait for one queue. Who was refused goes before all who came later, unless it is its tenant's limit."""

    def __init__(self, group: Group[Submission, R], ended: Callable[[], object]) -> None:
        self._group = group
        self._ended = ended
        self._waiting: dict[_Waiter[R], None] = {}
        self._at_once = _AT_ONCE
        self._look_s = LOOK_MIN_S
        self._stuck = False
        self.limit = ""
        """The limit of the queue that the last try ended at."""
        self._news = asyncio.Event()
        self._draining = False
        self._running = asyncio.ensure_future(self._run())

    async def outcome_of(self, submission: Submission, *, wait_s: float) -> R | None:
        waiter: _Waiter[R] = _Waiter(submission, asyncio.get_running_loop().time() + wait_s)
        self._waiting[waiter] = None
        if not self._stuck:
            self._news.set()
        try:
            return await waiter.outcome
        finally:
            self._waiting.pop(waiter, None)
            if waiter.outcome.done() and not waiter.outcome.cancelled():
                waiter.outcome.exception()  # its client may just have gone: nobody else would look at it

    def drain(self) -> None:
        self._draining = True
        self._news.set()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._try_all()
                await self._pause()
        finally:
            self._ended()
            for waiter in self._waiting:  # only when this task is cancelled: nobody would try them
                waiter.outcome.cancel()

    async def _try_all(self) -> None:
        """In their order, as far as there is room: more at a time while there is, few when there was none."""
        self._news.clear()
        self._stuck = False
        at_limit: set[str] = set()
        while not self._stuck and (group := self._first(at_limit)):
            outcomes = await asyncio.gather(*(self._group(one.submission) for one in group), return_exceptions=True)
            refused = [
                self._refused(waiter, outcome, at_limit) for waiter, outcome in zip(group, outcomes, strict=True)
            ]
            if not any(refused):
                self._at_once = min(_AT_ONCE, 2 * self._at_once)
        if not self._stuck:
            self.limit = ""

    def _first(self, at_limit: set[str]) -> list[_Waiter[R]]:
        group: list[_Waiter[R]] = []
        for waiter in self._waiting:
            if len(group) == self._at_once:
                break
            if waiter.submission.tenant not in at_limit:
                group.append(waiter)
        return group

    def _refused(self, waiter: _Waiter[R], outcome: R | BaseException, at_limit: set[str]) -> bool:
        """Whether it has to wait on; else it is told its outcome."""
        if isinstance(outcome, Refused) and outcome.waits:
            self._look_s = min(LOOK_MAX_S, max(LOOK_MIN_S, outcome.retry_after_s))
            if isinstance(outcome, QueueFull):
                self._stuck, self._at_once, self.limit = True, 1, outcome.limit
            else:
                at_limit.add(waiter.submission.tenant)
                self._at_once = min(self._at_once, _FEW)
            return True
        self._let_go(waiter, outcome)
        return False

    def _let_go(self, waiter: _Waiter[R], outcome: R | BaseException | None) -> None:
        self._waiting.pop(waiter, None)
        if waiter.outcome.done():  # its client has gone
            return
        if isinstance(outcome, BaseException):
            waiter.outcome.set_exception(outcome)
        else:
            waiter.outcome.set_result(outcome)

    async def _pause(self) -> None:
        """Until another try is worth it. Whose time is up is let go: never while it is being tried."""
        now = asyncio.get_running_loop().time()
        while self._waiting:
            first = next(iter(self._waiting))  # all wait equally long, so it is the first whose time is up, too
            if self._draining:
                self._let_go(first, _draining())
            elif first.until <= now:
                self._let_go(first, None)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(self._look_s, first.until - now)):
                        await self._news.wait()
                return

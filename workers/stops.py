"""Stopping a running task: a soft signal, then SIGKILL, whatever the code does."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from taskgate.contract.states import ErrorKind
from workers.children import ChildProcess, StopReason
from workers.holdings import Holding, Holdings
from workers.slot import boot_ns

log = structlog.get_logger()

KILL_AFTER_S = 5.0
"""Between the soft signal and SIGKILL, for cancels and timeouts."""


class Stops:
    """Timers and signals only; how the attempt then ends is its child's word or its child's death."""

    def __init__(
        self, holdings: Holdings, facts: Callable[[Holding], dict[str, Any]], *, paused_ns: Callable[[], int]
    ) -> None:
        self._holdings = holdings
        self._facts = facts
        self._paused_ns = paused_ns
        self._loop = asyncio.get_running_loop()

    def arm(self, holding: Holding) -> None:
        """Its timeout runs from now; time for which the guard has it stopped does not count."""
        holding.paused_ns = self._paused_ns()
        self._later(holding, holding.task.spec.timeout_s, partial(self._timed_out, holding))

    def stop(self, holding: Holding, reason: StopReason, *, kill: bool = True) -> None:
        """Ask softly, and kill if it does not help. A cancel is not overridden, other reasons are by another one."""
        if holding.child is None or holding.ending or holding.stop in (reason, StopReason.CANCEL):
            return
        log.info("stopping", reason=reason.name.lower(), **self._facts(holding))
        holding.stop = reason
        holding.child.soft_stop(holding.seq, reason)
        if kill:
            self._later(holding, KILL_AFTER_S, partial(self._kill, holding, holding.child))

    def over_memory(self, holding: Holding, rss_bytes: int) -> None:
        """It passed its limit: no soft signal helps against that."""
        if holding.child is not None and holding.killed_as is None:
            log.warning("over its memory limit, killing", rss_bytes=rss_bytes, **self._facts(holding))
            holding.killed_as = ErrorKind.MEMORY
            holding.child.kill()

    def _timed_out(self, holding: Holding) -> None:
        """Timers count from the hand-over: one that stood in a pipeline gets the rest of its time."""
        if holding.child is None or holding.ending:
            return
        task = holding.child.sample().tasks.get(holding.seq)
        if task is not None and task.started_ns:
            begun_ns = task.started_ns
        else:  # received and yet not shown as running: then its hand-over is all that is known
            begun_ns = holding.handed_ns if holding.seq <= holding.child.received() else boot_ns()
        paused_ns = self._paused_ns() - holding.paused_ns
        rest_s = holding.task.spec.timeout_s - (boot_ns() - begun_ns - paused_ns) / 1e9
        if rest_s > 0.001:
            self._later(holding, rest_s, partial(self._timed_out, holding))
        else:
            self.stop(holding, StopReason.TIMEOUT)

    def _kill(self, holding: Holding, child: ChildProcess) -> None:
        """It did not end by itself. The task that blocks an event loop is to blame, not the one that waited for it."""
        if holding.ending or holding.child is not child:
            return
        noted = child.sample().noted if child.spec.kind == "async" else 0
        blocker = self._holdings.of(child, noted) if noted else None
        if blocker is not None and blocker is not holding and holding.stop is StopReason.TIMEOUT:
            holding.stop = None
            blocker.killed_as = ErrorKind.TIMEOUT
        log.warning("killing", **self._facts(holding))
        child.kill()

    def _later(self, holding: Holding, seconds: float, call: Callable[[], None]) -> None:
        holding.timers.append(self._loop.call_later(seconds, call))

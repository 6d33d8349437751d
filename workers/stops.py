"""Stopping a running task: a soft signal, then SIGKILL, whatever the code does."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from taskgate.contract.states import ErrorKind
from workers import endings
from workers.children import ChildProcess, StopReason
from workers.holdings import Holding, Holdings
from workers.metrics import Metrics
from workers.slot import boot_ns
from workers.stacks import KILL_S, Stacks

log = structlog.get_logger()

KILL_AFTER_S = 5.0
"""Between the soft signal and SIGKILL, for cancels and timeouts."""
LONG_S = 0.1
"""Longer timeouts get their timers only then: most tasks have ended before, and a timer costs each of them."""
NS_OF_A_MS = 1_000_000


class Stops:
    """Timers and signals only; how the attempt then ends is its child's word or its child's death."""

    def __init__(
        self,
        holdings: Holdings,
        stacks: Stacks,
        facts: Callable[[Holding], dict[str, Any]],
        *,
        paused_ns: Callable[[], int],
        metrics: Metrics | None = None,
    ) -> None:
        self._holdings = holdings
        self._stacks = stacks
        self._facts = facts
        self._paused_ns = paused_ns
        self._metrics = metrics or Metrics()
        self._loop = asyncio.get_running_loop()

    def arm(self, *holdings: Holding) -> None:
        """Their timeouts run from now; time for which the guard has them stopped does not count."""
        paused_ns, long = self._paused_ns(), []
        for holding in holdings:
            holding.paused_ns = paused_ns
            if holding.task.spec.timeout_s > LONG_S:
                long.append(holding)
            else:
                self._arm(holding, holding.task.spec.timeout_s)
        if long:
            self._loop.call_later(LONG_S, self._arm_long, long)

    def _arm_long(self, holdings: list[Holding]) -> None:
        for holding in holdings:
            if not holding.ending:
                self._arm(holding, holding.task.spec.timeout_s - LONG_S)

    def _arm(self, holding: Holding, seconds: float) -> None:
        self._later(holding, seconds, partial(self._timed_out, holding))

    def stop(self, holding: Holding, reason: StopReason, *, grace_s: float = KILL_AFTER_S, kill: bool = True) -> None:
        """Ask softly, and kill if it does not help. A cancel overrides, a timeout only a drain, a drain nothing.

        `kill` False: somebody else does that, after `grace_s`.
        """
        if holding.child is None or holding.ending or holding.stop in (reason, StopReason.CANCEL):
            return
        if reason is StopReason.DRAIN and holding.stop is not None:
            return  # what has happened to it counts, though its worker stops
        log.info("stopping", reason=reason.name.lower(), **self._facts(holding))
        if holding.stop is None:
            holding.steps = holding.child.steps()
        holding.stop, holding.stop_paused_ns = reason, self._paused_ns()
        holding.events.append(endings.stopping_event(reason, grace_s))
        if reason is StopReason.TIMEOUT:
            self._stacks.at_timeout(holding)
        holding.child.soft_stop(holding.seq, reason)
        if kill:
            self._later(holding, grace_s, partial(self._kill, holding, holding.child))

    def killed(self, holding: Holding, reason: str) -> None:
        """Its child is about to be killed because of it."""
        holding.killed = True
        if holding.child is not None:
            self._metrics.killed(holding.child, reason)
        holding.events.append(endings.killed_event(reason))

    def over_memory(self, holding: Holding, rss_bytes: int, left_s: float) -> None:
        """It passed its limit: no soft signal helps against that. `left_s`: until even that would be too late."""
        if (child := holding.child) is not None and holding.killed_as is None:
            log.warning("over its memory limit, killing", rss_bytes=rss_bytes, **self._facts(holding))
            holding.killed_as = ErrorKind.MEMORY

            def kill() -> None:
                if not holding.ending:
                    self.killed(holding, "memory")
                    child.kill()

            self._stacks.before_kill(holding, child, kill, within_s=left_s)

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
        """It did not end by itself."""
        if holding.ending or holding.child is not child or holding.stop is None:
            return
        paused_ns = self._paused_ns() - holding.stop_paused_ns
        if paused_ns > NS_OF_A_MS:  # what the guard has stopped could not end: the grace goes on when it does
            holding.stop_paused_ns += paused_ns
            self._later(holding, paused_ns / 1e9, partial(self._kill, holding, child))
            return
        log.warning("killing", **self._facts(holding))
        if child.spec.kind == "async" and child.steps() == holding.steps:
            self._kill_blocker(holding, child)
        else:
            self.killed(holding, holding.stop.name.lower())
            child.kill()

    def _kill_blocker(self, holding: Holding, child: ChildProcess) -> None:
        """No task has made a step since the soft signal, so it was not heard: who blocks the loop is to blame."""
        blocker = holding if child.spec.alone else self._holdings.of(child, child.noted())
        if blocker is None:
            self._end_blocked(holding, child, None)
        else:
            kill = partial(self._end_blocked, holding, child, blocker)
            self._stacks.before_kill(blocker, child, kill, within_s=KILL_S)

    def _end_blocked(self, holding: Holding, child: ChildProcess, blocker: Holding | None) -> None:
        if child.steps() != holding.steps:  # it goes on: nobody blocks it any more
            self._kill(holding, child)
            return
        if blocker is None:
            child.blocked = True
            self._metrics.killed(child, "blocked")
        elif blocker is not holding:
            blocker.killed_as = ErrorKind.TIMEOUT
            self.killed(blocker, "blocks its event loop")
        else:
            self.killed(holding, str(holding.stop and holding.stop.name.lower()))
        if holding.stop is StopReason.TIMEOUT and blocker is not holding:
            holding.stop = None  # its time is over because of another one
        child.kill()

    def _later(self, holding: Holding, seconds: float, call: Callable[[], None]) -> None:
        holding.timers.append(self._loop.call_later(seconds, call))

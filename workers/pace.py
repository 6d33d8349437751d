"""How fast one attempt may emit events, held where they start: in the child."""

import time
from collections.abc import Callable

from taskgate.attempt import EMITS_A_S, EMITS_AT_ONCE, MAX_EMIT_BYTES_A_S

TELL_EVERY_S = 0.25
PAUSE_S = 0.25
"""Whoever has spent all gets nothing before so much of a second is saved up: losses then lie together, in one gap."""


class Pace:
    """So many events and bytes a second, and as many at once as are saved up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at_s = clock()
        self._events = float(EMITS_AT_ONCE)
        self._bytes = float(MAX_EMIT_BYTES_A_S)
        self._spent = False
        self._told_s = 0.0

    def admits(self, size: int) -> bool:
        now_s = self._clock()
        passed_s, self._at_s = now_s - self._at_s, now_s
        self._events = min(EMITS_AT_ONCE, self._events + EMITS_A_S * passed_s)
        self._bytes = min(MAX_EMIT_BYTES_A_S, self._bytes + MAX_EMIT_BYTES_A_S * passed_s)
        if self._spent and (self._events < EMITS_A_S * PAUSE_S or self._bytes < MAX_EMIT_BYTES_A_S * PAUSE_S):
            return False
        self._spent = self._events < 1 or self._bytes < size
        if self._spent:
            return False
        self._events -= 1
        self._bytes -= size
        return True

    def tells_loss(self) -> bool:
        """Whether it is time to say that something was not admitted."""
        if self._at_s - self._told_s < TELL_EVERY_S:
            return False
        self._told_s = self._at_s
        return True

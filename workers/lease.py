"""The lease: until when this supervisor may claim, hand over and start."""

import asyncio
from collections.abc import Callable

from workers.guard_client import GuardClient
from workers.slot import boot_ns

MARGIN_SHARE, LEAST_MARGIN_S = 0.05, 0.05
"""Kept back of the lease, for the time between a check and what it allowed, and between the deadline and the stop."""


class Lease:
    """Extended by answered beats alone, counted from the moment the beat was sent; the guard is told each time.

    `contact` is set while Redis answered the last call: whoever failed clears it, the next answered beat sets it.
    """

    def __init__(self, lease_s: float, guard: GuardClient) -> None:
        self._length_ns = int((lease_s - max(lease_s * MARGIN_SHARE, LEAST_MARGIN_S)) * 1e9)
        self._guard = guard
        self._paused_ns = 0
        self.deadline_ns = 0
        self.on_silent: Callable[[], None] = lambda: None
        self.contact = asyncio.Event()

    @property
    def holds(self) -> bool:
        return boot_ns() < self.deadline_ns

    def paused_ns(self) -> int:
        """How long the guard has kept tasks stopped, all in all; what is paused does not use up its timeout."""
        return self._paused_ns + self._over_ns()

    def _over_ns(self) -> int:
        return max(0, boot_ns() - self.deadline_ns) if self.deadline_ns else 0

    def answered(self, sent_ns: int) -> None:
        """A beat sent at that time of the boot clock was answered."""
        self._paused_ns += self._over_ns()
        self.deadline_ns = sent_ns + self._length_ns
        self._guard.deadline(self.deadline_ns)
        self.contact.set()

    def silent(self) -> None:
        """A call was not answered: nothing goes to Redis before the next answered beat."""
        self.contact.clear()
        self.on_silent()

"""All connections of a process together: who lets us wait too long is closed, and idle ones make room for new ones."""

import asyncio
import heapq
import math
from collections.abc import Set
from typing import Protocol
from weakref import WeakKeyDictionary

from uvicorn.server import ServerState

from taskgate.platform import open_files_limit

LOOK_EVERY_S = 1.0
MAX_CONNECTIONS = 16_384
SPARE_FILES = 256
"""Descriptors that are left for Redis and the rest when there are as many connections as there may be."""

_GIVE_UP = 16
"""One in so many of the idle connections is closed when there is no room: looking for them costs a while."""


class Waiting(Protocol):
    since: float
    """When it began to wait for its client, by the loop's clock."""

    allowed: float
    """How long it may; infinite while it waits for nothing."""

    def overdue(self) -> None: ...

    def close(self) -> None: ...


class Crowd:
    """Looks at all connections once a second, which costs less than a timer for each."""

    def __init__(self, connections: Set[Waiting], most: int) -> None:
        self._connections = connections
        self._most = most
        self._looking = False
        self._due = 0.0
        """When it looks next."""

    def joined(self, newcomer: Waiting) -> bool:
        """One more is there. False: it is one too many, and none of the others is idle."""
        if not self._looking:
            self._look_later(asyncio.get_running_loop())
        return len(self._connections) <= self._most or self._make_room(newcomer)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looking = True
        self._due = loop.time() + LOOK_EVERY_S
        loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        # By when this was due, not by now: what came while the process stood still has not been read yet.
        for each in [each for each in self._connections if self._due - each.since > each.allowed]:
            each.overdue()
        self._looking = False
        if self._connections:
            self._look_later(loop)

    def _make_room(self, newcomer: Waiting) -> bool:
        """Those that have been idle longest go: whoever has just come will soon have sent its request."""
        idle = [each for each in self._connections if each.allowed < math.inf and each is not newcomer]
        for each in heapq.nsmallest(max(1, len(idle) // _GIVE_UP), idle, key=lambda each: each.since):
            each.close()
        return bool(idle)


_crowds: WeakKeyDictionary[ServerState, Crowd] = WeakKeyDictionary()


def crowd_of(state: ServerState) -> Crowd:
    if state not in _crowds:
        most = max(SPARE_FILES, min(MAX_CONNECTIONS, open_files_limit() - SPARE_FILES))
        _crowds[state] = Crowd(state.connections, most)  # type: ignore[arg-type]
    return _crowds[state]

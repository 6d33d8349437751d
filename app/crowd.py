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

    def joined(self, newcomer: Waiting) -> bool:
        """One more is there. False: it is one too many, and none of the others is idle."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)
        return len(self._connections) <= self._most or self._make_room(newcomer)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for each in [each for each in self._connections if now - each.since > each.allowed]:
            each.overdue()
        self._looking = bool(self._connections)
        if self._looking:
            loop.call_later(LOOK_EVERY_S, self._look)

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

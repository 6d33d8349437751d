"""Turns: with which partition, and in it with which queue, a claim begins."""

from collections.abc import Collection, Sequence
from itertools import count

from taskgate.contract.models import Served

SLOTS = {"fresh": "sync", "alone": "async"}
"""Tasks of these kinds take turns with those of another."""


class Turns:
    """Whoever was served longest ago comes first, for each kind of slots by itself.

    One order for all kinds would let claims for one decide who comes first in those for another: where they alternate,
    always the same.
    """

    def __init__(self) -> None:
        self._ticks = count(1)
        self._asked: dict[tuple[str, int], int] = {}
        self._given: dict[tuple[str, int, str], int] = {}

    def partitions(self, every: Sequence[int], kinds: Collection[str]) -> Sequence[int]:
        """In the order of their turns when there is room for these kinds."""
        if len(every) == 1:
            return every
        return sorted(every, key=lambda each: min((self._asked.get((kind, each), 0) for kind in kinds), default=0))

    def asked(self, partition: int, kinds: Collection[str]) -> None:
        """It may give all that it has of these kinds: the others come first now."""
        tick = next(self._ticks)
        for kind in kinds:
            self._asked[kind, partition] = tick

    def served(self, every: Sequence[Served], partition: int) -> Sequence[Served]:
        """So that the queue comes first whose turn it is in that partition."""
        return sorted(every, key=lambda each: self._given.get((_slots(each.kind), partition, each.queue), 0))

    def given(self, partition: int, queue: str, kind: str) -> None:
        """It had a turn."""
        self._given[_slots(kind), partition, queue] = next(self._ticks)


def _slots(kind: str) -> str:
    return SLOTS.get(kind, kind)

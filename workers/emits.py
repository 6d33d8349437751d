"""Events of handlers' own on their way to the store: what waits is bounded, and a loss is told in its place."""

from collections.abc import Iterable

import msgspec

from workers.wire import Emitted

MOST_WAITING = 500
OWN_BYTES, MOST_OWN_BYTES, ALL_BYTES = 256 * 1024, 2 * 1024**2, 16 * 1024**2
"""Of what waits: every task may have the first; one may have the second, while all together have not the last."""

_json = msgspec.json.encode


class Emits:
    """Of one attempt. Numbers that are missing become a `gap`."""

    def __init__(self) -> None:
        self.bytes = 0
        self._count = 0
        self._seen = 0
        self._told = 0

    def take(self, one: Emitted, events: list[tuple[str, bytes]], *, others: Iterable["Emits"]) -> None:
        """Put it behind `events`, or lose it where too much waits. `others`: those of all attempts."""
        self._seen = max(self._seen, one.n)
        if one.name and self._has_room(len(one.data), others):
            self.tell_gap(events, before=one.n)
            events.append(("custom", _custom(one)))
            self._told = one.n
            self._count += 1
            self.bytes += len(one.data)

    def tell_gap(self, events: list[tuple[str, bytes]], *, before: int | None = None) -> None:
        """Say how many are lost before that number; None: of all that are known of."""
        last = self._seen if before is None else before - 1
        if last > self._told:
            events.append(("gap", _json({"lost": last - self._told, "detail": "emitted too fast"})))
            self._told = last

    def written(self, left: int, left_bytes: int) -> None:
        """So much still waits."""
        self._count, self.bytes = left, left_bytes

    def _has_room(self, size: int, others: Iterable["Emits"]) -> bool:
        if self._count >= MOST_WAITING or self.bytes + size > MOST_OWN_BYTES:
            return False
        return self.bytes + size <= OWN_BYTES or sum(each.bytes for each in others) + size <= ALL_BYTES


def _custom(one: Emitted) -> bytes:
    """As JSON; its data is JSON already."""
    return b'{"name":%b,"n":%d,"data":%b}' % (_json(one.name), one.n, one.data)

"""The watch on other supervisors: whose beat stood still for its own lease is dead."""

from collections.abc import Mapping
from dataclasses import dataclass

from taskgate.contract.models import BeatValue


@dataclass(slots=True)
class _Seen:
    value: BeatValue
    since_s: float


class Watch:
    """Times what it sees on this process' monotonic clock, in unbroken contact only: a gap starts it anew."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._seen: dict[str, _Seen] = {}

    def contact_lost(self) -> None:
        self._seen.clear()

    def look(self, beats: Mapping[str, BeatValue], now_s: float) -> dict[str, BeatValue]:
        """Take in every supervisor's last beat; the dead ones, with the value that stood still."""
        self._seen = {
            worker_id: self._seen[worker_id] if self._stands(worker_id, value) else _Seen(value, now_s)
            for worker_id, value in beats.items()
            if worker_id != self._worker_id
        }
        return {
            worker_id: seen.value
            for worker_id, seen in self._seen.items()
            if now_s - seen.since_s >= seen.value.lease_ms / 1000
        }

    def heard(self, worker_id: str, value: BeatValue, now_s: float) -> None:
        """A beat of one that is watched, told at once: its lease counts from now, not from our own next beat."""
        seen = self._seen.get(worker_id)
        if seen is not None and value.counter > seen.value.counter:
            self._seen[worker_id] = _Seen(value, now_s)

    def next_verdict_s(self) -> float | None:
        """When the next one may turn out dead, monotonic; None while nobody else is seen."""
        return min((seen.since_s + seen.value.lease_ms / 1000 for seen in self._seen.values()), default=None)

    def _stands(self, worker_id: str, value: BeatValue) -> bool:
        seen = self._seen.get(worker_id)
        return seen is not None and seen.value == value

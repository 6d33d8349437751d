"""What simulated users saw second by second: the figures of a load test, and whether they are within their limits."""

import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loadtest.client import quantile


@dataclass(frozen=True, kw_only=True)
class Limits:
    """In milliseconds, of the 99th percentile; 0: not judged."""

    accepted_ms: float = 0
    age_ms: float = 0


def _times() -> "array[float]":
    return array("f")


@dataclass
class _Second:
    users: int | None = None
    answers: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    accepted_ms: "array[float]" = field(default_factory=_times)
    status_ms: "array[float]" = field(default_factory=_times)
    age_ms: "array[float]" = field(default_factory=_times)

    def row(self) -> dict[str, Any]:
        return {
            "users": self.users,
            "answers": self.answers.total(),
            "accepted": len(self.accepted_ms),
            "refused": self.refused,
            **_percentiles("accepted", self.accepted_ms),
            **_percentiles("status", self.status_ms),
            **_percentiles("age", self.age_ms),
        }


class Journal:
    """Counts and times by the second; `clock` is that of the day, which the handlers' stamps are by too."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seconds: defaultdict[int, _Second] = defaultdict(_Second)

    def users(self, count: int) -> None:
        self._now().users = count

    def answered(self, what: str, status: int, took_ms: float) -> None:
        now = self._now()
        now.answers[what] += 1
        if status == 202 and what == "submit":
            now.accepted_ms.append(took_ms)
        elif status == 200 and what == "status":
            now.status_ms.append(took_ms)
        elif status == 429:
            now.refused += 1

    def event(self, at_ms: float) -> None:
        """One arrived now that its handler sent at that time."""
        self._now().age_ms.append(self._clock() * 1000 - at_ms)

    def rows(self) -> list[dict[str, Any]]:
        return [{"at_s": at_s, **self._seconds[at_s].row()} for at_s in sorted(self._seconds)]

    def totals(self) -> dict[str, float]:
        """Over the whole run; what did not happen is missing."""
        seconds = self._seconds.values()
        return {
            **_percentiles("accepted", *(second.accepted_ms for second in seconds)),
            **_percentiles("status", *(second.status_ms for second in seconds)),
            **_percentiles("age", *(second.age_ms for second in seconds)),
        }

    def over(self, limits: Limits) -> list[str]:
        """A line for each limit that was passed, or of which nothing is known."""
        totals = self.totals()
        judged = (
            ("p99 of the 202", totals.get("accepted_p99_ms"), limits.accepted_ms),
            ("p99 of the events' age", totals.get("age_p99_ms"), limits.age_ms),
        )
        return [
            f"{what}: {'not known' if ms is None else f'{ms:.0f} ms'}, limit {limit:g} ms"
            for what, ms, limit in judged
            if limit and (ms is None or ms > limit)
        ]

    def _now(self) -> _Second:
        return self._seconds[int(self._clock())]


def _percentiles(name: str, *times: "array[float]") -> dict[str, float]:
    ordered = sorted(ms for each in times for ms in each)
    if not ordered:
        return {}
    return {f"{name}_p50_ms": round(quantile(ordered, 0.5), 2), f"{name}_p99_ms": round(quantile(ordered, 0.99), 2)}

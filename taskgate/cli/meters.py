"""Rates of a watched task, from what was seen of it lately."""

from collections import deque
from time import monotonic

from taskgate.client import Task

_WINDOW_S = 10.0


class Meter:
    """How fast a number grows, over the last seconds. A number that falls is that of another attempt."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, value: float | None, now: float | None = None) -> None:
        if value is None:
            return
        at = monotonic() if now is None else now
        if self._seen and value < self._seen[-1][1]:
            self._seen.clear()
        if self._seen and value == self._seen[-1][1] and len(self._seen) > 1 and self._seen[-2][1] == value:
            self._seen.pop()  # it stands still: two marks say so
        self._seen.append((at, value))
        while len(self._seen) > 2 and at - self._seen[1][0] > _WINDOW_S:
            self._seen.popleft()

    def per_s(self) -> float | None:
        """None until there is something to compare."""
        if len(self._seen) < 2:
            return None
        (since, before), (until, now) = self._seen[0], self._seen[-1]
        return (now - before) / (until - since) if until > since else None


class Meters:
    """What a live line shows beside the task's own words."""

    def __init__(self) -> None:
        self._steps = Meter()
        self._cpu_ms = Meter()
        self._effort: object = None

    def note(self, task: Task) -> None:
        self._steps.note((task.get("progress") or {}).get("current"))
        effort = task.get("effort")
        if effort is not self._effort:  # the same object is the same measurement, shown again
            self._effort = effort
            self._cpu_ms.note((effort or {}).get("cpu_ms"))

    def rate(self, task: Task) -> str:
        """Steps a second, in the unit that the task names."""
        found = self._steps.per_s()
        unit = (task.get("progress") or {}).get("unit") or ""
        shown = f"{found:,.0f}" if found is not None and found >= 100 else f"{found:.3g}" if found else ""
        return f"{shown} {unit}".rstrip() + "/s" if shown else ""

    def cpu(self) -> str:
        """Of one CPU."""
        found = self._cpu_ms.per_s()
        return "" if found is None else f"{found / 10:.0f} %"

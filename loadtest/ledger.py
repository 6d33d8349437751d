"""What the simulated users were promised, and what became of it: the verdict of a load test."""

from collections import Counter
from dataclasses import dataclass, field

FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})


@dataclass
class Ledger:
    """Every accepted task by id, with the final status once somebody saw it. Holds if nothing is in `broken`."""

    limit: int
    """Tasks that may be submitted in all."""
    asked: int = 0
    refused: int = 0
    ended: dict[str, str | None] = field(default_factory=dict)
    broken: Counter[str] = field(default_factory=Counter)

    def may_submit(self) -> bool:
        """Whether one more may be submitted; counts it."""
        if self.asked >= self.limit:
            return False
        self.asked += 1
        return True

    def accepted(self, task_id: str) -> None:
        if task_id in self.ended:
            self.broken["an id was given out twice"] += 1
        self.ended[task_id] = None

    def answered(self, what: str, status: int, retry_after: str | None) -> float | None:
        """Judge an answer's status. Seconds to wait if it is a refusal, else None."""
        if status >= 500:
            self.broken[f"{what}: {status}"] += 1
        if status not in (429, 503):
            return None
        self.refused += 1
        if retry_after is None or not retry_after.isdecimal() or int(retry_after) < 1:
            self.broken[f"{what}: {status} with Retry-After {retry_after!r}"] += 1
            return 1.0
        return float(retry_after)

    def saw(self, task_id: str, status: str) -> bool:
        """Note a status that was read. Returns whether it is final."""
        before = self.ended[task_id]
        if before is not None and status != before:
            self.broken[f"{before} became {status}"] += 1
        if status in FINAL:
            self.ended[task_id] = status
        return status in FINAL

    def open(self) -> list[str]:
        """Accepted tasks whose end nobody has seen."""
        return [task_id for task_id, status in self.ended.items() if status is None]

    def close(self) -> list[str]:
        """The verdict: one line for each kind of broken promise."""
        lines = [f"{number} × {what}" for what, number in sorted(self.broken.items())]
        if self.open():
            lines.append(f"{len(self.open())} accepted tasks reached no final state: {self.open()[:3]}")
        if not self.ended:
            lines.append("no task was accepted")
        return lines

    def summary(self) -> str:
        ends = Counter(status or "open" for status in self.ended.values())
        return f"{len(self.ended)} accepted, {self.refused} refused, " + ", ".join(
            f"{number} {status}" for status, number in sorted(ends.items())
        )

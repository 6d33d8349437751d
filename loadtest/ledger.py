"""What the simulated users were promised, and what became of it: the verdict of a load test."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})

EXPECTED = {
    "submit": frozenset({202, 429}),
    "status": frozenset({200}),
    "again": frozenset({200, 410}),
    "result": frozenset({200}),
    "events": frozenset({200, 429}),
    "cancel": frozenset({200, 202, 409}),
}
"""Of a healthy service, by what the users do; 409: it had ended before. 410: it had, and has been purged since."""

PATIENCE_S = 60.0
"""Who has obeyed every Retry-After for so long must be in."""


@dataclass
class _Task:
    """One that was accepted."""

    due: Collection[str]
    """How it may end."""
    end: str | None = None
    """The final status that was read."""
    told: str | None = None
    """The one that its stream told."""


@dataclass
class Ledger:
    """Every accepted task by id, with the final status once somebody read it. Holds if nothing is in `broken`."""

    refused: int = 0
    waits: Counter[int] = field(default_factory=Counter)
    """By how many refusals they obeyed: submissions that got in after one."""
    tasks: dict[str, _Task] = field(default_factory=dict)
    broken: Counter[str] = field(default_factory=Counter)

    def answered(self, what: str, status: int, retry_after: str | None) -> float | None:
        """Judge an answer's status; 0: there was none. Seconds to wait if it is a refusal, else None."""
        if status not in EXPECTED[what]:
            self.broken[f"{what}: {status or 'no answer'}"] += 1
        if status not in (429, 503):
            return None
        self.refused += 1
        if retry_after is None or not retry_after.isdecimal() or int(retry_after) < 1:
            self.broken[f"{what}: {status} with Retry-After {retry_after!r}"] += 1
            return 1.0
        return float(retry_after)

    def accepted(self, task_id: str, *, due: Collection[str] = ("succeeded",), refusals: int = 0) -> None:
        """`refusals`: those that it obeyed before."""
        if task_id in self.tasks:
            self.broken["an id was given out twice"] += 1
        self.tasks[task_id] = _Task(due)
        if refusals:
            self.waits[refusals] += 1

    def kept_out(self, waited_s: float) -> bool:
        """Whether somebody who has obeyed for so long gives up, which is a broken promise."""
        if waited_s <= PATIENCE_S:
            return False
        self.broken[f"obeyed Retry-After for {PATIENCE_S:g} s and was not let in"] += 1
        return True

    def canceled(self, task_id: str, status: int) -> None:
        """After the answer to a cancel: 200 ended it, 202 asked it to, 409 came too late."""
        if status in (200, 202):
            self.tasks[task_id].due = ("canceled",) if status == 200 else ("canceled", *self.tasks[task_id].due)

    def told(self, task_id: str, status: str) -> None:
        """The end that a stream told."""
        self.tasks[task_id].told = status

    def saw(self, task_id: str, status: str) -> bool:
        """Note a status that was read. Returns whether it is final."""
        task = self.tasks[task_id]
        if task.end is not None and status != task.end:
            self.broken[f"{task.end} became {status}"] += 1
        if status not in FINAL:
            return False
        if task.end is None and status not in task.due:
            self.broken[f"{status}, where {' or '.join(task.due)} was due"] += 1
        if task.told not in (None, status):
            self.broken[f"the stream told {task.told}, the status says {status}"] += 1
        task.end = status
        return True

    def result(self, *, whole: bool) -> None:
        """Whether a result tells of just what its task was given."""
        if not whole:
            self.broken["a result is not that of its task's payload"] += 1

    def open(self) -> list[str]:
        """Accepted tasks whose end nobody has read."""
        return [task_id for task_id, task in self.tasks.items() if task.end is None]

    def close(self) -> list[str]:
        """The verdict: one line for each kind of broken promise."""
        lines = [f"{number} × {what}" for what, number in sorted(self.broken.items())]
        if self.open():
            lines.append(f"{len(self.open())} accepted tasks reached no final state: {self.open()[:3]}")
        if not self.tasks:
            lines.append("no task was accepted")
        return lines

    def summary(self) -> str:
        ends = Counter(task.end or "open" for task in self.tasks.values())
        parts = [f"{len(self.tasks)} accepted ({_counted(ends)})", f"{self.refused} refused"]
        if self.waits:
            first, most = self.waits[1] / self.waits.total(), max(self.waits)
            parts.append(f"{self.waits.total()} got in after refusals ({first:.0%} after one, at most {most})")
        return ", ".join(parts)


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(counter.items()))

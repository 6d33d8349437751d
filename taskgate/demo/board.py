"""The tasks as their event streams have shown them so far."""

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from taskgate.demo.orders import Order

FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})


@dataclass(slots=True)
class Row:
    """One task. `steps` are the distinct values of progress that arrived while it ran."""

    order: Order
    id: str
    status: str = "queued"
    attempt: int = 0
    current: float = 0
    total: float | None = None
    unit: str = ""
    stage: str = ""
    message: str = ""
    steps: set[tuple[int, float]] = field(default_factory=set)
    ended: bool = False
    task: dict[str, Any] = field(default_factory=dict)
    """The task as `end` brought it."""

    @property
    def final(self) -> bool:
        return self.status in FINAL

    @property
    def fraction(self) -> float | None:
        """Of its work, from 0 to 1; None when it does not say how much there is."""
        return min(1.0, self.current / self.total) if self.total else None

    @property
    def took_s(self) -> float:
        """From its acceptance to its end, by the service's clock."""
        created, finished = self.task.get("created_at"), self.task.get("finished_at")
        if not created or not finished:
            return 0.0
        return (datetime.fromisoformat(finished) - datetime.fromisoformat(created)).total_seconds()

    def apply(self, event: str, data: dict[str, Any]) -> None:
        """Takes `snapshot`, `status`, `progress` and `end`; other events change nothing here."""
        if event in ("snapshot", "status", "end"):
            self.status = data.get("status", self.status)
            self.attempt = data.get("attempt", self.attempt)
        progress = data if event == "progress" else data.get("progress")
        if event in ("snapshot", "progress", "end") and isinstance(progress, dict):
            self._progress(progress)
        if event == "end":
            self.ended, self.task = True, data

    def _progress(self, progress: dict[str, Any]) -> None:
        self.current = progress.get("current") or 0
        self.total = progress.get("total")
        self.unit, self.stage, self.message = (str(progress.get(name) or "") for name in ("unit", "stage", "message"))
        self.steps.add((self.attempt, self.current))


@dataclass(slots=True)
class Board:
    """All rows in the order of submission, and the clock that the screen shows."""

    rows: list[Row] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def add(self, order: Order, task_id: str) -> Row:
        row = Row(order, task_id)
        self.rows.append(row)
        return row

    def role(self, role: str) -> Row:
        """The only row with that role."""
        (row,) = (row for row in self.rows if row.order.role == role)
        return row

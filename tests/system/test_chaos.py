"""The verdict of `make chaos` is not blind: each broken promise is told, and a good record is not."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from loadtest.chaos import processes, stamps
from loadtest.chaos.stamps import Run
from loadtest.chaos.users import Entry
from loadtest.chaos.verdict import Task, faults
from taskgate.contract.models import Event, TaskRecord, TaskSpec
from taskgate.contract.states import Status

ID = "01a228a5-0000-7000-8000-000000000000"
MS = 1_000_000
END_MS = 1000


def record(status: Status, *, attempt: int = 1, kind: str = "", **fields: Any) -> TaskRecord:
    """A task that ended at END_MS; the clocks do not drift."""
    times: dict[str, Any] = dict.fromkeys(("created_ms", "started_ms", "due_ms", "purge_ms", "lease_ms", "now_ms"), 0)
    error = json.dumps({"kind": kind}).encode() if kind else b""
    rest: dict[str, Any] = {
        "worker": "w",
        "progress": b"",
        "effort": b"",
        "health": "",
        "alive_ms": None,
        "position": None,
    }
    given = {"deadline_ms": 0, "finished_ms": END_MS, "has_result": False, "version": 9, "epoch": attempt, **fields}
    spec = TaskSpec(id=ID, type="chaos.cpu", max_attempts=3)
    return TaskRecord(spec=spec, status=status, attempt=attempt, error=error, **times, **rest, **given)


def events(*statuses: tuple[str, int] | tuple[str, int, str]) -> list[Event]:
    found = []
    for n, (status, attempt, *kind) in enumerate(statuses):
        data: dict[str, Any] = {"status": status, "attempt": attempt}
        if kind:
            data["error"] = {"kind": kind[0]}
        found.append(Event(f"{n}-0", "status", n, json.dumps(data).encode()))
    return found


def run(attempt: int, start_ms: int, last_ms: int, *, pid: int = 1, ended: bool = True) -> Run:
    return Run(ID, attempt, pid, start_ms * MS, last_ms * MS, ended)


RETRIED = events(("running", 1), ("queued", 1, "lost"), ("running", 2), ("succeeded", 2))
GOOD = Task(
    record(Status.SUCCEEDED, attempt=2), RETRIED, [run(1, 100, 200, ended=False), run(2, 300, 400, pid=2)], None
)
ENTRY = Entry(0, "chaos.cpu", {}, task_id=ID)
FAILED = Task(record(Status.FAILED, attempt=3, kind="crash"), events(("failed", 3, "crash")), [], None)


def test_a_task_that_ended_once_is_in_order() -> None:
    assert list(faults(GOOD, drift_ms=0)) == []
    canceled = Task(
        record(Status.CANCELED, attempt=0),
        events(("canceled", 0)),
        [],
        Entry(0, "chaos.cpu", {}, task_id=ID, cancel_asked=True, cancel_answer=200, seen="canceled"),
    )
    assert list(faults(canceled, drift_ms=0)) == []


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (GOOD._replace(record=record(Status.RUNNING)), "still running"),
        (GOOD._replace(events=[*RETRIED, *events(("failed", 2))]), "ended as succeeded, events say"),
        (GOOD._replace(events=RETRIED[:-1]), "ended as succeeded, events say"),
        (GOOD._replace(record=record(Status.SUCCEEDED, attempt=4)), "4 attempts of 3"),
        (GOOD._replace(runs=[run(1, 100, 301, ended=False), run(2, 300, 400, pid=2)]), "runs overlap by 1.0 ms"),
        (GOOD._replace(runs=[run(1, 100, 200), run(2, 300, END_MS + 20)]), "ran for 20.0 ms after its end"),
        (GOOD._replace(runs=[run(1, 100, 200)]), "attempt 2 was counted without a run"),
        (GOOD._replace(runs=[*GOOD.runs, run(3, 500, 600)]), "attempt 3 ran without a claim"),
        (GOOD._replace(runs=[run(1, 100, 200), run(2, 300, 400, ended=False)]), "without running to its end"),
        (GOOD._replace(record=record(Status.EXPIRED, deadline_ms=5)), "expired with 2 runs"),
        (FAILED._replace(record=record(Status.FAILED, attempt=1, kind="lost")), "failed (lost) with attempt 1 of 3"),
        (FAILED._replace(record=record(Status.FAILED, attempt=3)), "failed without an error"),
        (GOOD._replace(entry=Entry(0, "", {}, seen="failed")), "a client saw failed, now it is succeeded"),
        (FAILED._replace(entry=Entry(0, "", {}, cancel_answer=202)), "cancel was answered 202, and it failed"),
        (GOOD._replace(entry=Entry(0, "", {}, cancel_answer=200)), "canceled at once, and it succeeded"),
        (FAILED._replace(record=record(Status.CANCELED), entry=ENTRY), "canceled, and nobody asked"),
    ],
)
def test_a_broken_promise_is_told(task: Task, told: str) -> None:
    assert any(told in line for line in faults(task, drift_ms=0)), list(faults(task, drift_ms=0))


def test_an_attempt_may_count_without_a_run_when_its_event_says_why() -> None:
    reasons = events(
        ("running", 1),
        ("queued", 1, "lost"),
        ("running", 2),
        ("retrying", 2, "crash"),
        ("running", 3),
        ("failed", 3, "timeout"),
    )
    assert list(faults(FAILED._replace(events=reasons), drift_ms=0)) == []


def test_stamps_of_a_killed_process_are_read_up_to_the_torn_line(tmp_path: Path) -> None:
    (tmp_path / "7").write_text("start a 1 10\ntick a 1 20\nend a 1 30\nstart a 1 40\ntick a 1 5")
    assert stamps.read(tmp_path) == {"a": [Run("a", 1, 7, 10, 30, True), Run("a", 1, 7, 40, 40, False)]}


def test_an_end_that_nobody_asked_for_is_told_and_one_that_was_is_not(tmp_path: Path) -> None:
    leaves = [sys.executable, "-c", "import time; time.sleep(0.01)"]
    stays = [sys.executable, "-c", "import time; time.sleep(60)"]
    for name, argv, number, wrong in (
        ("own", leaves, None, 1),
        ("killed", stays, signal.SIGKILL, 0),
    ):
        place = processes.Place(name, argv, {}, tmp_path)
        place.start()
        if number is not None:
            place.end(number)
        deadline = time.monotonic() + 20
        while not place.ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert place.pid is None
        assert len(place.exits) == wrong, place.exits

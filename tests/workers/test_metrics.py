"""What a supervisor counts: of attempts by what the store said, of children what they used since the last look."""

import itertools
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from taskgate.contract.models import Claimed, TaskSpec
from taskgate.metrics import text
from workers.metrics import Metrics
from workers.procstat import Numbers


class Child:
    """Nothing of one matters but which it is."""


def claimed(**more: Any) -> Claimed:
    spec = TaskSpec(id="t", type="report", queue="pdf")
    task = Claimed(0, 1, 1, created_ms=1_000, claimed_ms=3_500, spec=spec, payload=b"", checkpoint=b"")
    return msgspec.structs.replace(task, **more)


@pytest.mark.parametrize(
    ("status", "finished", "retried"),
    [("succeeded", 1, 0), ("failed", 1, 0), ("canceled", 1, 0), ("retrying", 0, 1), ("queued", 0, 1), ("stale", 0, 0)],
)
def test_an_attempt_counts_as_what_became_of_its_task(status: str, finished: int, retried: int) -> None:
    metrics = Metrics()

    metrics.ended(claimed().spec, status, run_ms=250, error_kind="exception")

    assert metrics.finished.values.get(("pdf", "report", status), 0) == finished
    assert metrics.retries.values.get(("pdf", "report"), 0) == retried
    assert metrics.runs.values["pdf", "report", status][-1] == 0.25
    assert {kind: count for (kind,), count in metrics.failures.values.items() if count} == {"exception": 1}


def test_a_task_waits_from_when_it_could_be_claimed_and_only_for_its_first_claim() -> None:
    metrics = Metrics()

    metrics.starts(claimed())
    metrics.starts(claimed(epoch=2))

    assert metrics.waits.values["pdf", "report"][-1] == 2.5
    assert sum(metrics.waits.values["pdf", "report"][:-1]) == 1


def test_what_a_child_uses_is_added_up_and_that_of_the_next_child_too() -> None:
    metrics = Metrics()
    for looks in ([(100, 30, 4_000_000), (250, 90, 9_000_000)], [(40, 10, 1_000_000)]):
        track = cast(Any, SimpleNamespace(counted=(0, 0, 0), numbers=None))
        for cpu_ms, wait_ms, gc_ns in looks:
            track.numbers = Numbers(cpu_ms, wait_ms, 0)
            metrics.measured("sync", track, cast(Any, SimpleNamespace(gc_ns=gc_ns)))

    assert metrics.vitals.cpu.values["sync",] == pytest.approx(0.29)
    assert metrics.vitals.waited.values["sync",] == pytest.approx(0.1)
    assert metrics.vitals.paused.values["sync",] == pytest.approx(0.01)


def test_what_the_kernel_does_not_say_is_not_counted_and_takes_nothing_back() -> None:
    metrics = Metrics()
    track = cast(Any, SimpleNamespace(counted=(0, 0, 0), numbers=Numbers(100, 50, 0)))
    metrics.measured("sync", track, cast(Any, SimpleNamespace(gc_ns=0)))
    for numbers in (Numbers(200, None, 0), None, Numbers(210, 60, 0)):
        track.numbers = numbers
        metrics.measured("sync", track, cast(Any, SimpleNamespace(gc_ns=0)))

    assert metrics.vitals.waited.values["sync",] == pytest.approx(0.06)
    assert metrics.vitals.cpu.values["sync",] == pytest.approx(0.21)


def test_no_two_metrics_have_one_name() -> None:
    names = [each.name for each in Metrics().families()]

    assert not [name for name, group in itertools.groupby(sorted(names)) if len(list(group)) > 1]


def test_a_kill_is_told_in_one_word() -> None:
    metrics = Metrics()
    for reason in ("timeout", "blocks its event loop", "what it started runs on"):
        metrics.killed(cast(Any, Child()), reason)

    assert {kind: count for (kind,), count in metrics.kills.values.items() if count} == {
        "timeout": 1,
        "blocked": 1,
        "left_running": 1,
    }


def test_a_child_is_killed_once_however_many_tasks_it_had() -> None:
    metrics, child = Metrics(), cast(Any, Child())
    for reason in ("lease", "lease", "lost"):
        metrics.killed(child, reason)

    assert {kind: count for (kind,), count in metrics.kills.values.items() if count} == {"lease": 1}


def test_what_may_happen_is_there_before_it_has() -> None:
    """`rate` needs a sample before the first count: thirteen kills at once would be no rate at all."""
    metrics = Metrics()
    metrics.starts(claimed())

    told = text(metrics.families()).decode()

    for line in (
        'taskgate_kills_total{kind="lease"} 0',
        'taskgate_child_deaths_total{how="SIGSEGV"} 0',
        'taskgate_attempt_errors_total{kind="lost"} 0',
        'taskgate_tasks_handed_back_total{reason="suspect"} 0',
        'taskgate_redis_errors_total{error="unavailable"} 0',
        'taskgate_tasks_finished_total{queue="pdf",type="report",status="failed"} 0',
    ):
        assert f"{line}\n" in told

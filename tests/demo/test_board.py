"""The board: what the events of a stream make of a row."""

import pytest

from taskgate.demo.board import Row
from taskgate.demo.expectations import Expectations
from taskgate.demo.orders import Order, first_wave, second_wave


@pytest.fixture
def row() -> Row:
    return Row(Order("name", "demo.census", {}), "id")


def test_a_row_follows_its_stream(row: Row) -> None:
    row.apply("snapshot", {"status": "queued", "attempt": 0, "progress": None})
    row.apply("status", {"status": "running", "attempt": 1})
    row.apply("progress", {"attempt": 1, "current": 3, "total": 12, "unit": "files", "stage": None})

    assert (row.status, row.attempt, row.fraction, row.unit, row.stage) == ("running", 1, 0.25, "files", "")
    assert not row.ended


def test_the_end_brings_the_last_progress_and_the_whole_task(row: Row) -> None:
    task = {
        "status": "succeeded",
        "attempt": 2,
        "progress": {"current": 12, "total": 12},
        "created_at": "2026-01-01T00:00:00.5Z",
        "finished_at": "2026-01-01T00:00:02Z",
    }
    row.apply("end", task)

    assert row.ended
    assert row.final
    assert (row.fraction, row.took_s, row.task) == (1.0, 1.5, task)


def test_steps_count_each_value_once_an_attempt(row: Row) -> None:
    for attempt, current in [(1, 1), (1, 1), (1, 2), (2, 1)]:
        row.apply("status", {"status": "running", "attempt": attempt})
        row.apply("progress", {"current": current, "total": 5})

    assert len(row.steps) == 3


def test_without_a_total_there_is_no_fraction(row: Row) -> None:
    row.apply("progress", {"current": 7, "total": None})

    assert row.fraction is None


def test_other_events_change_nothing(row: Row) -> None:
    before = repr(row)
    row.apply("custom", {"name": "x", "status": "failed", "progress": {"current": 1}})
    row.apply("gap", {})

    assert repr(row) == before


@pytest.mark.parametrize(("held", "whole"), [([], False), ([True], True), ([True, False], False)])
def test_expectations_hold_only_together(held: list[bool], whole: bool) -> None:
    expectations = Expectations()
    for one in held:
        expectations.expect("text", one)

    assert expectations.held is whole


@pytest.mark.parametrize("short", [True, False])
def test_twenty_tasks_are_ordered_and_each_role_once(short: bool) -> None:
    orders = [*first_wave(short=short), *second_wave({})]
    roles = [order.role for order in orders if order.role not in ("", "files")]

    assert len(orders) == 20
    assert len({order.type for order in orders}) >= 5
    assert sorted(roles) == ["canceled", "dead", "report", "stubborn", "twice", "victim"]

"""Health: what the numbers of one interval allow to say, and when they allow nothing."""

from typing import Any

import pytest

from taskgate.contract.states import Health
from workers.health import Evidence, judge

IDLE: dict[str, Any] = {
    "interval_ms": 1000,
    "cpu_ms": 0,
    "cpu_wait_ms": 0,
    "quiet_ms": 40_000,
    "waiting": False,
    "paused": False,
}
BLIND: dict[str, Any] = {"cpu_ms": None, "cpu_wait_ms": None}


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({}, Health.STALLED),
        ({"quiet_ms": 29_999}, Health.WAITING),
        ({"waiting": True}, Health.WAITING),
        ({"cpu_ms": 21}, Health.COMPUTING),
        ({"cpu_ms": 20}, Health.STALLED),
        ({"cpu_ms": 499, "cpu_wait_ms": 500}, Health.COMPUTING),
        ({"cpu_ms": 499, "cpu_wait_ms": 501}, Health.STARVED),
        ({"cpu_ms": 999, "paused": True}, Health.PAUSED),
        ({"loop_taken": True}, Health.STARVED),
        ({"runnable": True}, Health.STARVED),
        ({"runnable": True, "waiting": True}, Health.WAITING),
        ({"cpu_ms": 900, "cpu_wait_ms": None}, Health.COMPUTING),
        (BLIND, None),
        (BLIND | {"quiet_ms": 1}, Health.WAITING),
        (BLIND | {"waiting": True}, Health.WAITING),
        (BLIND | {"paused": True}, Health.PAUSED),
    ],
)
def test_the_verdict_follows_from_the_numbers(facts: dict[str, Any], verdict: Health | None) -> None:
    assert judge(Evidence(**IDLE | facts), stall_after_ms=30_000) is verdict

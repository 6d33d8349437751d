"""When a failed attempt is tried again: within its step, and spread over all of it."""

from statistics import mean

import pytest

from workers.retry import delay_s

MANY = 2000


@pytest.mark.parametrize(("attempt", "step_s"), [(1, 2), (2, 4), (5, 32), (6, 50), (10_000, 50)])
def test_delays_fill_their_step(attempt: int, step_s: float) -> None:
    """Twice as long with every attempt, up to the longest; what failed together does not come back together."""
    delays = [delay_s(attempt, base_s=2, max_s=50) for _ in range(MANY)]

    assert 0 <= min(delays) < step_s / 20
    assert step_s * 19 / 20 < max(delays) <= step_s
    assert step_s * 0.45 < mean(delays) < step_s * 0.55
    assert len(set(delays)) == MANY


def test_without_a_base_there_is_no_delay() -> None:
    assert delay_s(3, base_s=0, max_s=50) == 0

"""When a failed attempt is tried again."""

import random


def delay_s(attempt: int, *, base_s: float, max_s: float) -> float:
    """Exponential backoff with full jitter: uniform between 0 and the step of this attempt (counted from 1).

    Full jitter spreads tasks that failed together over the whole step (AWS Architecture Blog, 2015).
    """
    step = min(max_s, base_s * 2 ** min(attempt - 1, 60))
    return random.uniform(0, step)

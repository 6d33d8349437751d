"""When to try again, and when to give up."""

import random
import time

from taskgate.client.errors import Refused, ServiceError, TooMany, Unavailable, Unreachable

_SPREAD = 1.2
"""Clients that were told the same `Retry-After` do not come back in one instant; none comes earlier."""


def may_pass(error: ServiceError) -> bool:
    return isinstance(error, TooMany | Unavailable | Unreachable)


class Patience:
    """Bounds a row of failures in time: the pause that `Retry-After` asks for, else a growing one, with jitter."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Something worked: the next failure is a first one."""
        self._deadline: float | None = None
        self._cap_s = 0.1

    def delay_s(self, error: ServiceError) -> float:
        """The pause before the next try; raises `error` when there is none to come."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        left_s = self._deadline - now
        asked_s = error.retry_after_s if isinstance(error, Refused) else None
        self._cap_s = min(5.0, self._cap_s * 2)
        if asked_s is None:
            delay_s = self._cap_s * random.uniform(0.5, 1.0)
        else:
            delay_s = max(asked_s, min(asked_s * random.uniform(1.0, _SPREAD), left_s))
        if not may_pass(error) or delay_s > left_s:
            raise error
        return delay_s

"""When to try again, and when to give up."""

import random
import time

from taskgate.client.errors import Refused, ServiceError

_PASSING = frozenset({429, 502, 503, 504})


class Patience:
    """Bounds a row of failures in time: the pause that `Retry-After` asks for, else a growing one with jitter."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Something worked: the next failure is a first one."""
        self._deadline: float | None = None
        self._cap_s = 0.1

    def delay_s(self, error: ServiceError) -> float:
        """The pause before the next try; raises `error` when there is none to come."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._seconds
        asked_s = error.retry_after_s if isinstance(error, Refused) else None
        self._cap_s = min(5.0, self._cap_s * 2)
        delay_s = self._cap_s * random.uniform(0.5, 1.0) if asked_s is None else asked_s
        hopeless = isinstance(error, Refused) and error.status not in _PASSING
        if hopeless or time.monotonic() + delay_s > self._deadline:
            raise error
        return delay_s

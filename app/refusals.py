"""The log of refusals: one line per kind and second, however many there are."""

import time
from collections import Counter

import structlog
from starlette.types import Scope

from app.errors import Problem
from app.observers import facts

logger = structlog.get_logger()


class RefusalLog:
    """Keeps a flood of refused requests from becoming a flood of lines."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self.counts: Counter[str] = Counter()
        """By problem."""

    def note(self, problem: Problem, request_id: str, scope: Scope | None = None) -> None:
        """`scope`: of what became a request."""
        self.counts[problem.slug] += 1
        logged_at, hidden = self._last.get(problem.slug, (float("-inf"), 0))
        now = time.monotonic()
        if now - logged_at < 1:
            self._last[problem.slug] = logged_at, hidden + 1
            return
        self._last[problem.slug] = now, 0
        about = {"request_id": request_id} | ({} if scope is None else facts(scope))
        logger.info("refused", problem=problem.slug, status=problem.status, not_logged=hidden, **about)

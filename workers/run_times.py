"""How long tasks of each type usually run: kept in memory, said with every beat, and what estimates are made of."""

import math

_NEW_COUNTS = 0.1
"""How much of a new run goes into the mean once there were ten: it follows what runs now."""


class RunTimes:
    """Per type the decaying geometric mean of successful runs: a single one that took long hardly moves it."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        """Runs, up to where they all count the same, and the mean of the logarithms of their ms."""

    def add(self, task_type: str, run_ms: int) -> None:
        runs, mean = self._seen.get(task_type, (0, 0.0))
        runs += 1
        mean += (math.log(run_ms or 1) - mean) * max(1 / runs, _NEW_COUNTS)
        self._seen[task_type] = runs, mean

    def typical_ms(self) -> dict[str, int]:
        return {task_type: round(math.exp(mean)) for task_type, (_, mean) in self._seen.items()}

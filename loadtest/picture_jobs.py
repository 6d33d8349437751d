"""Two kinds of work for `loadtest.pictures`: one that only computes, one whose garbage takes the time."""

import time
from typing import Any

from taskgate import handler


@handler("pictures.compute", timeout_s=300)
def compute(payload: dict[str, float]) -> int:
    """Nothing to collect."""
    steps, until = 0, time.monotonic() + payload["seconds"]
    while time.monotonic() < until:
        steps += sum(range(10_000)) > 0
    return steps


@handler("pictures.garbage", timeout_s=300)
def garbage(payload: dict[str, float]) -> int:
    """Cycles that live for a while, of a heap that grows: the collector walks them again and again."""
    kept: list[Any] = []
    until = time.monotonic() + payload["seconds"]
    while time.monotonic() < until:
        for _ in range(1_000):
            ring: list[Any] = [{}, []]
            ring[1].append(ring)
            kept.append(ring)
        if len(kept) > 200_000:
            del kept[:100_000]
    return len(kept)

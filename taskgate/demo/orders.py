"""What the demo submits, and how each task has to end."""

from dataclasses import dataclass, field
from typing import Any

FOLDER = "made"
"""Below the output folder; the handlers take no other paths."""


@dataclass(frozen=True, slots=True)
class Order:
    """One task to submit. `role` names the ones that something happens to."""

    name: str
    type: str
    payload: Any
    options: dict[str, Any] = field(default_factory=dict)
    role: str = ""
    ends: str = "succeeded"
    attempts: int = 1


def first_wave(*, short: bool, killing: bool = True) -> list[Order]:
    """All but what is made from the census: 18 tasks, the one to be killed first, so that it starts at once."""
    # On a fast machine, too, there is time to see it move and to kill it half way.
    census: dict[str, Any] = {"limit": 300, "pause_ms": 10} if short else {"pause_ms": 3}
    return [
        Order("whole library", "demo.census", census, role="victim", attempts=2 if killing else 1),
        *(waiter(n) for n in range(1, 5)),
        Order("deaf to SIGTERM", "demo.stubborn", {}, {"timeout_s": 3}, role="stubborn", ends="failed"),
        Order("to be cancelled", "demo.sleep", {"seconds": 120}, role="canceled", ends="canceled"),
        Order("bad order", "demo.fail", {"order": 4711}, role="dead", ends="failed", attempts=2),
        Order("lucky at second try", "demo.flaky", {"succeed_at": 2, "after_s": 1}, attempts=2),
        Order("posted twice", "demo.echo", {"hello": "world"}, role="twice"),
        *(Order(f"shard {n} of 8", "demo.census", census | {"shard": n - 1, "shards": 8}) for n in (1, 2)),
        *(
            Order(f"landscapes {n}", "demo.thumbnails", {"folder": FOLDER, "images": 4, "seed": n}, role="files")
            for n in range(1, 4)
        ),
        *(Order(f"slow service {n}", "demo.random_waits", {"waits": 4 if short else 8}) for n in range(1, 4)),
    ]


def waiter(number: int) -> Order:
    """Waits on the event loop, for a time of its own."""
    return Order(f"waiter {number}", "demo.wait", {"seconds": 7 + number % 4, "steps": 20})


def second_wave(census: Any) -> list[Order]:
    """What is made from the result of the census that was killed."""
    payload = {"folder": FOLDER, "census": [census]}
    return [
        Order("chart", "demo.chart", payload, role="files"),
        Order("report", "demo.report", payload, role="report"),
    ]


def burst(size: int) -> list[Order]:
    """More than its queue takes at once."""
    return [Order(f"burst {n}", "demo.sleep", {"seconds": 0.4}, {"queue": "burst"}) for n in range(size)]

"""How many simulated users there are at what time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Stage:
    """`users` is reached, evenly, at the end of these seconds."""

    seconds: float
    users: int


SHAPES = {
    "stages": (Stage(30, 100), Stage(60, 500), Stage(10, 0)),
    "spike": (Stage(5, 20), Stage(10, 20), Stage(5, 500), Stage(20, 500), Stage(5, 20), Stage(10, 20), Stage(5, 0)),
    "soak": (Stage(60, 50), Stage(3480, 50), Stage(60, 0)),
}


def scaled(stages: Sequence[Stage], *, seconds: float | None = None, users: int | None = None) -> list[Stage]:
    """The same shape in so many seconds, with so many users at its peak; None: as it is."""
    faster = 1.0 if seconds is None else seconds / length_s(stages)
    smaller = 1.0 if users is None else users / peak(stages)
    return [Stage(stage.seconds * faster, round(stage.users * smaller)) for stage in stages]


def length_s(stages: Sequence[Stage]) -> float:
    return sum(stage.seconds for stage in stages)


def peak(stages: Sequence[Stage]) -> int:
    return max(stage.users for stage in stages)


def users_at(stages: Sequence[Stage], at_s: float) -> int | None:
    """At least one, so that the slowest machine has somebody to judge by; None: it is over."""
    began_s = 0.0
    for before, stage in pairwise((Stage(0, 0), *stages)):
        if at_s < began_s + stage.seconds:
            return max(1, round(before.users + (stage.users - before.users) * (at_s - began_s) / stage.seconds))
        began_s += stage.seconds
    return None

"""What a check found, and what to do about it."""

from enum import StrEnum
from typing import NamedTuple

_MIB = 1024**2


class Level(StrEnum):
    OK = "OK"
    WARN = "WARN"
    """Works, but not as well or as safely as it could."""
    FAIL = "FAIL"
    """A promise would be broken, or it would not start."""
    LOOK = "LOOK"
    """Cannot be seen from here: somebody has to look."""


class Finding(NamedTuple):
    level: Level
    what: str
    found: str
    advice: str = ""
    """What to do; empty when OK."""
    stops: bool = False
    """It can never work like this: no process starts."""


def judge(
    what: str, found: str, *, stops: bool = False, fail: bool = False, warn: bool = False, advice: str
) -> Finding:
    level = Level.FAIL if fail or stops else Level.WARN if warn else Level.OK
    return Finding(level, what, found, "" if level is Level.OK else advice, stops)


def mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"

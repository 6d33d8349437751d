"""What tenants may have of what runs: their weights and limits, as claims and beats carry them."""

from collections.abc import Mapping
from typing import NamedTuple

OTHERS = "*"
"""Stands for all that are not named, also in the policy's file."""


class Share(NamedTuple):
    weight: float = 1.0
    concurrency: int = 0
    """Tasks of the tenant that run at a time; 0: no limit."""


EVERYBODY = Share()


def shares(named: Mapping[str, Share], others: Share = EVERYBODY, *, partitions: int = 1) -> str:
    """A line for each tenant that is treated in another way than the others (scripts/prelude/lanes.lua `share_of`).

    "" when all are treated alike. Each partition has its part of a limit, rounded up.
    """
    special = {name: share for name, share in named.items() if share != others}
    if not special and others == EVERYBODY:
        return ""
    lines = [
        f"\n{name} {share.weight!r} {-(-share.concurrency // partitions)}"
        for name, share in {OTHERS: others, **special}.items()
    ]
    return "".join(lines)

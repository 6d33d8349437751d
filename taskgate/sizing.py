"""What a host needs besides memory: connections and descriptors. docs/operations.md has the formulas in words."""

from typing import NamedTuple

from taskgate.contract.connection import Role, connections
from taskgate.settings import Settings

_SUPERVISOR: tuple[Role, ...] = ("supervisor", "supervisor-beat", "supervisor-claim")
CHILD_DESCRIPTORS = 12
"""Of one child, as its supervisor holds them: socket pairs, pidfd, slot, pipes, memory, and payloads on their way."""
OWN_DESCRIPTORS = 64
"""Libraries, logs, event loop and connections to Redis of any process."""
IN_EXCESS = 2
"""Children of a kind beside the working ones: a warm spare or one for suspects, and one that exits."""


class Children(NamedTuple):
    """The most processes that run handlers on a host at a time."""

    sync: int
    asynchronous: int


def children(settings: Settings) -> Children:
    return Children(
        settings.worker_processes + IN_EXCESS,
        settings.async_processes + IN_EXCESS if settings.async_processes else 0,
    )


def gateway_connections(settings: Settings) -> int:
    """To Redis, of all gateway processes of one host; streams and clients add none."""
    return settings.gateway_processes * connections(settings, "gateway")


def supervisor_connections(settings: Settings) -> int:
    """To Redis, of one host's supervisor; tasks and children add none."""
    return sum(connections(settings, role) for role in _SUPERVISOR)


def tasks_at_a_time(settings: Settings) -> int:
    """On one host: as many connections to a database as there are when each task opens one and closes it."""
    return settings.worker_processes + settings.async_processes * settings.async_slots


def supervisor_descriptors(settings: Settings) -> int:
    return OWN_DESCRIPTORS + sum(children(settings)) * CHILD_DESCRIPTORS


def async_child_descriptors(settings: Settings) -> int:
    """Of tasks that have two open each, such as a connection and a file."""
    return OWN_DESCRIPTORS + 2 * settings.async_slots

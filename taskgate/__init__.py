"""What handlers import: `from taskgate import Attempt, Fail, Retry, child_start, handler`; and the clients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskgate.attempt import Attempt, Canceled, Drained, Fail, Retry, Stopped, TimedOut
    from taskgate.client import AsyncClient, Client
    from taskgate.handlers import child_start, handler

__all__ = [
    "AsyncClient",
    "Attempt",
    "Canceled",
    "Client",
    "Drained",
    "Fail",
    "Retry",
    "Stopped",
    "TimedOut",
    "child_start",
    "handler",
]

_HOMES = {
    "AsyncClient": "taskgate.client",
    "Client": "taskgate.client",
    "child_start": "taskgate.handlers",
    "handler": "taskgate.handlers",
}


def __getattr__(name: str) -> Any:
    """Exports are loaded when first used: the command line imports this package and needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'taskgate' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "taskgate.attempt")), name)

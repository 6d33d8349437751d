"""Libraries without what they load only because it is installed: a fifth of what starting a process of ours costs."""

import importlib
import sys

_NEVER_USED = {"structlog": "rich", "redis": "opentelemetry.sdk.metrics"}
"""Library → what it would load for the case that it is asked to draw tracebacks, or to tell metrics: nobody asks."""


def load() -> None:
    """Only in processes without code of others, which could use both. What is wanted elsewhere is loaded as usual."""
    for library, unused in _NEVER_USED.items():
        if library not in sys.modules and unused not in sys.modules:
            sys.modules[unused] = None  # type: ignore[assignment]
            try:
                importlib.import_module(library)
            finally:
                del sys.modules[unused]

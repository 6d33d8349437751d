"""The loggers of a child: how they were before the first task, and are again for the next one."""

import logging
from typing import Any

import structlog


class Loggers:
    """Remembers what decides whether a line is captured. What handlers' modules set at their import stays."""

    def __init__(self) -> None:
        """Use `remember` again when the child is ready."""
        self._root = logging.getLogger()
        self.remember()

    def remember(self) -> None:
        root = self._root
        self._handlers, self._filters = list(root.handlers), list(root.filters)
        self._level, self._limit = root.level, root.manager.disable
        self._each = [(one, one.level, one.formatter, list(one.filters)) for one in self._handlers]
        loggers = [one for one in root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
        self._enabled = [one for one in loggers if not one.disabled]
        self._structlog: dict[str, Any] = structlog.get_config()

    def restore(self) -> bool:
        """Undo what mutes all of them; whether there was anything. Cheap: it runs before every task."""
        root = self._root
        if (
            root.handlers == self._handlers
            and root.level == self._level
            and root.manager.disable == self._limit
            and not root.disabled
            and root.filters == self._filters
        ):
            return False
        root.handlers[:], root.filters[:] = self._handlers, self._filters
        root.disabled = False
        root.setLevel(self._level)
        logging.disable(self._limit)
        return True

    def restore_all(self) -> bool:
        """Also what mutes one of them."""
        changed = self.restore()
        for one, level, formatter, filters in self._each:
            if (one.level, one.formatter, one.filters) != (level, formatter, filters):
                one.level, one.formatter, one.filters[:] = level, formatter, filters
                changed = True
        for logger in self._enabled:
            if logger.disabled:
                logger.disabled, changed = False, True
        if structlog.get_config() != self._structlog:
            structlog.configure(**self._structlog)
            changed = True
        return changed

"""What goes wrong with a call.

ServiceError
├── Unreachable     no answer, or not one of Taskgate
└── Refused         a problem answer (RFC 9457)
"""

import email.utils
import time
from collections.abc import Mapping
from typing import Any


class ServiceError(Exception):
    pass


class Unreachable(ServiceError):
    pass


class Refused(ServiceError):
    """`slug` is the last part of the problem's type; `errors` are (JSON pointer, detail)."""

    def __init__(self, status: int, problem: Mapping[str, Any], *, retry_after: str | None = None) -> None:
        self.status = status
        self.title = str(problem.get("title") or "refused")
        self.slug = str(problem.get("type", "")).rpartition("/")[2] or self.title
        self.detail = str(problem.get("detail") or "")
        self.errors = [
            (str(one.get("pointer", "")), str(one.get("detail", "")))
            for one in problem.get("errors") or []
            if isinstance(one, dict)
        ]
        self.retry_after_s = _seconds(retry_after)
        super().__init__(f"{self.status} {self.slug}: {self.detail or self.title}")


def _seconds(header: str | None) -> float | None:
    """Either form of `Retry-After`; None without one, or when it is malformed."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        moment = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())

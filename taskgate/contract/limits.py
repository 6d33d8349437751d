"""The bounds of a submission, the same over HTTP and from a handler."""

import math

MAX_DELAY_S = 366 * 86_400
"""Of `delay_s`, `deadline_s`, how far away `run_at` lies, and what `Retry` asks for."""

MAX_TIMEOUT_S = 366 * 86_400
MAX_ATTEMPTS = 100
MAX_PRIORITY = 9
MAX_METADATA_BYTES = 4 * 1024
MAX_KEY_CHARS = 255
"""Of `unique_key` and `concurrency_key`: printable ASCII."""

ON_CONFLICT = ("return", "replace", "refuse")
"""What a submission wants while another live task has its unique key; the first is the default."""
MAX_PAYLOAD_BYTES = 1024 * 1024
"""From a handler; over HTTP the whole body has `max_body_bytes`."""

MAX_DEPTH = 200
"""Levels of arrays and objects around a value in a payload: pydantic_core's own limit, the same on every Python."""


def is_key(text: str) -> bool:
    return 1 <= len(text) <= MAX_KEY_CHARS and text.isascii() and text.isprintable()


def milliseconds(seconds: float | None) -> int:
    """0 means none, so nothing above 0 may become it; rounded up, but not for the noise of a float (1.1 s)."""
    return max(1, math.ceil(round(seconds * 1000, 6))) if seconds else 0

"""Reads that several wait for: begun once, and ended by nobody's leaving."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def shared(reading: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A call that several await (shielded), or nobody: its error is told to those who do, and goes by otherwise."""
    task = asyncio.ensure_future(reading)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task

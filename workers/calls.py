"""Calls in threads (`asyncio.to_thread`): whose they are, so that those which outlive their task are found."""

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

calls: contextvars.ContextVar[set[Future[Any]] | None] = contextvars.ContextVar("taskgate_calls", default=None)
"""Of the task in whose context this is asked: the calls that have not ended."""


class Threads(ThreadPoolExecutor):
    """An event loop's default executor, which notes each call for its task. A call that runs cannot be stopped."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(call, *args, **kwargs)
        if (own := calls.get()) is not None:
            own.add(future)
            future.add_done_callback(own.discard)
        return future

"""Calls in threads (`asyncio.to_thread`): whose they are, so that those which outlive their task are found."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Calls(set[Future[Any]]):
    """Those of one task that have not ended; `show` is told how many, until `close`.

    They end in their threads, and the last that is shown is what there is.
    """

    def __init__(self, show: Callable[[int], None]) -> None:
        super().__init__()
        self._show = show
        self._showing = threading.RLock()  # a signal handler may begin a call within all of these

    def began(self, call: Future[Any]) -> None:
        with self._showing:
            self.add(call)
            self._show(len(self))

    def ended(self, call: Future[Any]) -> None:
        with self._showing:
            self.discard(call)
            self._show(len(self))

    def close(self) -> None:
        """The task has ended: what is shown is another's from now on."""
        with self._showing:
            self._show = _nobody


def _nobody(_: int) -> None:
    return None


calls: contextvars.ContextVar[Calls | None] = contextvars.ContextVar("taskgate_calls", default=None)
"""Of the task in whose context this is asked: the calls that have not ended."""


class Threads(ThreadPoolExecutor):
    """An event loop's default executor, which notes each call for its task. A call that runs cannot be stopped."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        # In the caller's context, as `asyncio.to_thread` does: its output is the task's.
        future = super().submit(contextvars.copy_context().run, partial(call, *args, **kwargs))
        if (own := calls.get()) is not None:
            own.began(future)
            future.add_done_callback(own.ended)
        return future

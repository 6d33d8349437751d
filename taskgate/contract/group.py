"""Group commit: what arrives while a call is under way goes together in the next one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Sink(Protocol[R_contra]):
    """Where one item's result goes: a future, or what is cheaper. Its methods are called in the group's loop."""

    def done(self) -> bool: ...

    def set_result(self, result: R_contra, /) -> None: ...

    def set_exception(self, error: Exception, /) -> None: ...

    def cancel(self) -> object: ...


class Group(Generic[T, R]):
    """Turns single calls into grouped ones, one group at a time, in order of arrival.

    `call` answers a list of items with as many results. Whoever waits may be cancelled: the call goes on. An
    exception of `call` reaches everybody in that group, TimeoutError whoever has waited for `within_s`: one timer for
    all, since one for each costs more than the rest of this.
    """

    def __init__(
        self,
        call: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        size: Callable[[T], int] = lambda item: 0,
        max_items: int = 128,
        max_bytes: int = 1 << 20,
        within_s: float | None = None,
    ) -> None:
        self._call = call
        self._size = size
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._within_s = within_s
        self._unanswered: deque[tuple[float, Sink[R]]] = deque()
        """In order of arrival, with the time at which each gives up; those that have their answer are dropped late."""
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[T, Sink[R]]] = deque()
        self._runner: asyncio.Task[None] | None = None

    def __call__(self, item: T) -> asyncio.Future[R]:
        """Put `item` into the next group; the future is its result."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.put(item, future)
        return future

    def put(self, item: T, sink: Sink[R]) -> None:
        """The same, its result going to `sink`."""
        self._waiting.append((item, sink))
        if self._within_s is not None:
            self._give_up_later(sink, self._within_s)
        if self._runner is None:
            self._runner = asyncio.ensure_future(self._run())

    def _give_up_later(self, sink: Sink[R], within_s: float) -> None:
        loop = asyncio.get_running_loop()
        unanswered = self._unanswered
        while unanswered and unanswered[0][1].done():
            unanswered.popleft()
        unanswered.append((loop.time() + within_s, sink))
        if self._timer is None:
            self._timer = loop.call_later(within_s, self._give_up, loop)

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        unanswered = self._unanswered
        while unanswered and (unanswered[0][1].done() or unanswered[0][0] <= loop.time()):
            _, sink = unanswered.popleft()
            if not sink.done():
                _fail(sink, TimeoutError())
        if unanswered:
            self._timer = loop.call_at(unanswered[0][0], self._give_up, loop)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._send(self._take())
        finally:
            self._runner = None
            for _, sink in self._waiting:  # only when this task is cancelled: nobody would send them
                sink.cancel()
            self._waiting.clear()

    def _take(self) -> list[tuple[T, Sink[R]]]:
        group: list[tuple[T, Sink[R]]] = []
        total = 0
        while self._waiting and len(group) < self._max_items:
            total += self._size(self._waiting[0][0])
            if group and total > self._max_bytes:
                break
            group.append(self._waiting.popleft())
        return group

    async def _send(self, group: list[tuple[T, Sink[R]]]) -> None:
        try:
            results = await self._call([item for item, _ in group])
            if len(results) != len(group):
                raise AssertionError(f"{len(results)} results for {len(group)} items")
        except BaseException as error:
            for _, sink in group:
                if sink.done():
                    continue
                if not isinstance(error, Exception):
                    sink.cancel()
                    continue
                _fail(sink, error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, sink), result in zip(group, results, strict=True):
            if not sink.done():
                sink.set_result(result)


def _fail(sink: Sink[R], error: Exception) -> None:
    sink.set_exception(error)
    if isinstance(sink, asyncio.Future):
        sink.exception()  # a waiter that has gone must not leave a warning behind

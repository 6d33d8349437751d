"""Both clients for tests that block: what holds for one must hold for the other."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Iterator
from typing import Any, TypeVar

from taskgate.client import AsyncClient, Client

T = TypeVar("T")


class OnALoop:
    """The asyncio client, each call run to its end on a loop of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*args, **options)

    def __enter__(self) -> "OnALoop":
        return self

    def __exit__(self, *exc: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **options: Any) -> Any:
            found = method(*args, **options)
            return self._runner.run(found) if inspect.iscoroutine(found) else self._each(found)

        return call

    def _each(self, found: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                try:
                    yield self._runner.run(_next(found))
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(_close(found))


async def _next(found: AsyncGenerator[T, None]) -> T:
    # A StopAsyncIteration may leave a coroutine, a StopIteration may not.
    return await anext(found)


async def _close(found: AsyncGenerator[T, None]) -> None:
    await found.aclose()


CLIENTS: dict[str, Any] = {"blocking": Client, "asyncio": OnALoop}

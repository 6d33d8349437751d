"""What every act of the demo needs: submitting, watching, waiting for what the streams show."""

import asyncio
from collections.abc import Callable, Iterable

from taskgate.demo.api import Api, Unexpected
from taskgate.demo.board import Board, Row
from taskgate.demo.expectations import Expectations
from taskgate.demo.orders import Order
from taskgate.demo.screen import Screen

_PATIENCE_S = 120.0


class Stuck(Exception):
    """Something that the demo waits for did not happen."""


class Stage:
    """One service, and the board that its event streams fill. `group` gets one watcher for every task."""

    def __init__(self, api: Api, *, board: Board, screen: Screen, group: asyncio.TaskGroup) -> None:
        self.api = api
        self.board = board
        self.expectations = Expectations()
        self._screen = screen
        self._group = group
        self._changed = asyncio.Event()

    def say(self, text: str) -> None:
        self._screen.say(text)

    def expect(self, text: str, held: bool, detail: str = "") -> None:
        self.expectations.expect(text, held, detail)

    async def submit(self, order: Order, *, key: str | None = None) -> Row:
        """The row of the accepted task, watched from now on.

        Raises:
            Unexpected: it was not accepted with a 202 that says where to follow it.
        """
        answer = await self.api.submit(order, key=key)
        if answer.code != 202 or answer.headers.get("location") != f"/tasks/{answer.task_id}":
            raise Unexpected(f"{order.name} ({order.type}) was answered with {answer.code}: {answer.body}")
        row = self.board.add(order, answer.task_id)
        self._group.create_task(self._watch(row))
        return row

    async def ended(self, rows: Iterable[Row]) -> None:
        for row in rows:
            await self.until(lambda row=row: row.ended, what=f"the end of {row.order.name!r}")  # type: ignore[misc]

    async def until(self, wanted: Callable[[], bool], *, what: str) -> None:
        """Returns when the board shows what is wanted.

        Raises:
            Stuck: it does not within two minutes.
        """
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not wanted():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Stuck(f"{what} did not come within {_PATIENCE_S:.0f} s") from None

    async def _watch(self, row: Row) -> None:
        async for name, data in self.api.events(row.id):
            row.apply(name, data)
            self._screen.changed(row)
            self._changed.set()

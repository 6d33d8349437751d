"""The demo from its first to its last line: service, acts, verdict, and nothing left behind."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import httpx

from taskgate.demo import acts, orders
from taskgate.demo.api import Api, Unexpected
from taskgate.demo.board import Board
from taskgate.demo.expectations import Expectations
from taskgate.demo.judge import judge
from taskgate.demo.screen import Screen
from taskgate.demo.service import NotStarted, Service
from taskgate.demo.stage import Stage, Stuck

_BURST = 60


class Demo:
    """One performance. `run` always stops what it started, also when it is cancelled."""

    def __init__(
        self, *, short: bool, plain: bool, files: Path | None = None, url: str | None = None, api_key: str = ""
    ) -> None:
        """`url`: of a service that runs already, which is neither started nor stopped, and none of it killed."""
        self._short = short
        self._url = url
        self._api_key = api_key
        self._folder = Path(tempfile.mkdtemp(prefix="taskgate-demo-"))
        self._files = (files or self._folder / "files").resolve()
        self._board = Board()
        self._screen = Screen(self._board, plain=plain)
        self._service = Service(self._folder, files=self._files)
        self._expectations = Expectations()
        self._made: list[Path] = []
        self._stopping = False

    def interrupt(self, performance: asyncio.Task[bool]) -> None:
        """Stops it; asked again, or when it is stopping anyway, without patience."""
        if self._stopping:
            self._service.hurry()
        else:
            self._stopping = True
            performance.cancel()

    async def run(self) -> bool:
        """Whether every expectation held."""
        try:
            await self._perform()
        except BaseException:
            await self._stop()
            shutil.rmtree(self._folder)
            raise
        code, left = await self._stop()
        if self._url is None:
            self._expectations.expect("the service stops in order", code == 0, f"exit code {code}")
            self._expectations.expect("no process is left", not left, ", ".join(map(str, left)))
        self._close()
        return self._expectations.held

    async def _stop(self) -> tuple[int | None, list[int]]:
        self._stopping = True
        if self._url is not None:
            return 0, []
        self._screen.say("Stopping the service")
        return await self._service.stop(), await self._service.left_over()

    async def _perform(self) -> None:
        if self._url is None:
            self._screen.say("Starting Valkey, gateway and workers")
            try:
                await self._service.start()
            except NotStarted as error:
                self._expectations.expect("the service starts", False, f"\n{error}")
                return
        url = self._url or self._service.url
        self._screen.say(f"Ready at {url}, its documentation at {url}/docs")
        try:
            async with Api(url, api_key=self._api_key) as api, self._screen.watching():
                await self._acts(api)
        except* (Unexpected, Stuck, httpx.HTTPError) as errors:
            for one in errors.exceptions:
                self._expectations.expect("the demo comes to its end", False, str(one) or type(one).__name__)

    async def _acts(self, api: Api) -> None:
        async with asyncio.TaskGroup() as group:
            stage = Stage(api, board=self._board, screen=self._screen, group=group)
            self._expectations = stage.expectations
            await acts.refuse(stage)
            for order in orders.first_wave(short=self._short, killing=self._url is None):
                await (acts.post_twice(stage, order) if order.role == "twice" else stage.submit(order))
            canceling = group.create_task(acts.cancel(stage, self._board.role("canceled")))
            victim = self._board.role("victim")
            await (acts.kill(stage, victim) if self._url is None else stage.ended([victim]))
            census = await api.result(victim.id)
            for order in orders.second_wave(census):
                await stage.submit(order)
            await canceling
            await stage.ended(self._board.rows)
            await acts.burst(stage, _BURST, optional=self._url is not None)
            self._made = await judge(stage, here=self._url is None)

    def _close(self) -> None:
        """Table, verdict, files; what nobody needs any more goes, the log stays when something did not hold."""
        if self._board.rows:
            self._screen.close(self._board.rows)
        self._screen.verdict(self._expectations)
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        if self._url is not None:
            shutil.rmtree(self._folder)
        elif self._expectations.held:
            self._service.log.unlink()
        else:
            self._screen.say(f"What the service logged: {self._service.log}")
        for file in self._made:
            if file.suffix != ".png":
                self._screen.say(f"Made {file}")
        pictures = [file for file in self._made if file.suffix == ".png"]
        if pictures:
            self._screen.say(f"Made {len(pictures)} thumbnails in {pictures[0].parent}")

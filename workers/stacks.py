"""Where a task is: asked of its event loop, or of faulthandler in its child. Never the stack of another task."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import structlog

from taskgate.contract import stacks
from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.stacks import StackAnswer, Thread
from workers.background import Background
from workers.children import ChildProcess, Exit
from workers.dumps import main_thread, obstacle, of_handler, parse
from workers.holdings import Holding, Holdings
from workers.wire import TaskStack

log = structlog.get_logger()

LOOP_S = 0.4
"""An event loop that has not answered by then is looked at from outside."""
DUMP_S = 0.8
"""Both together stay below what a gateway waits."""
SHARED_S = 0.2
"""Who asks again that soon gets the same answer: a task is disturbed at most five times a second."""
KILL_S = 0.1
"""What is about to be killed has so long to say where it is."""


class Found(NamedTuple):
    """A stack, or why there is none."""

    source: str | None = None
    threads: list[Thread] | None = None
    reason: str | None = None
    shared: bool = False

    def event(self) -> bytes:
        """As a `stalled` event carries it."""
        text = _text(self.threads) if self.threads else None
        return msgspec.json.encode(
            {"source": self.source, "shared": self.shared, "reason": self.reason, "stack": text},
        )


class Stacks:
    """Costs a task nothing until it is asked for, and then one signal, or a moment of its event loop."""

    def __init__(
        self,
        holdings: Holdings,
        *,
        worker_id: str,
        now_ms: Callable[[], int],
        paused: Callable[[], bool],
        publish: Callable[[str, str], Awaitable[object]],
    ) -> None:
        self._holdings = holdings
        self._worker_id = worker_id
        self._now_ms = now_ms
        self._paused = paused
        self._publish = publish
        self._flights: dict[Holding, asyncio.Task[tuple[int, Found]]] = {}
        self._asked: dict[Holding, asyncio.Future[list[Thread]]] = {}
        self._background = Background()
        self._loop = asyncio.get_running_loop()

    def answer(self, task_id: str, request: str, channel: str) -> None:
        """Tell a gateway where the task is."""
        self._background.spawn(self._answer(task_id, request, channel))

    def stalled(self, holding: Holding) -> None:
        """Put where it is into its events."""
        self._background.spawn(self._tell_stall(holding))

    def heard(self, child: ChildProcess, told: TaskStack) -> None:
        """An event loop has said where one of its tasks is."""
        holding = self._holdings.of(child, told.seq)
        if holding is None:
            return
        if told.timed_out:
            holding.stack = _text(told.threads)
        if (asked := self._asked.get(holding)) is not None and not asked.done():
            asked.set_result(told.threads)

    def at_timeout(self, holding: Holding) -> None:
        """Its soft signal is sent next. faulthandler writes before Python gets to see that one; a loop tells itself."""
        child = holding.child
        if child is not None and child.running() == holding.seq:
            self._begin(holding, child)

    def before_kill(self, holding: Holding, child: ChildProcess, kill: Callable[[], None], *, within_s: float) -> None:
        """Call `kill` as soon as its stack is here, at the latest `within_s` from now; it may have ended by then."""

        def strike(*_: object) -> None:
            if child.exit is None and not child.killed:
                kill()

        dump = self._begin(holding, child) if within_s > 0 else None
        if dump is None:
            kill()
            return
        dump.add_done_callback(strike)
        self._loop.call_later(within_s, strike)

    def of_end(self, holding: Holding) -> str:
        """Of an attempt that its child says has timed out: where it was then."""
        return holding.stack or _text(self._dumped(holding))

    def of_death(self, holding: Holding, child: ChildProcess, how: Exit) -> str:
        """Of an attempt that died with its child: where the signal struck, or where it was before it was killed."""
        if how.stack and self._is_in(holding, child, child.moment()):
            dump = parse(how.stack)
            struck = [one for one in dump.threads if child.spec.kind == "sync" or one.current]
            return f"{dump.headline}\n{_text(struck)}"
        return holding.stack or (_text(self._dumped(holding)) if holding.moment == child.moment() else "")

    def _is_in(self, holding: Holding, child: ChildProcess, moment: tuple[int, int, int]) -> bool:
        running, noted, _ = moment
        return holding.seq in (running, noted) or child.spec.alone

    def _dumped(self, holding: Holding) -> list[Thread]:
        child = holding.child
        if holding.dump is None or child is None or not self._is_in(holding, child, holding.moment):
            return []
        dump = parse(holding.dump.result() if holding.dump.done() else child.dumps.end())
        return of_handler(dump) if child.spec.kind == "sync" else main_thread(dump)

    def _begin(self, holding: Holding, child: ChildProcess) -> "asyncio.Future[str] | None":
        if self._paused() or obstacle(child.pid) is not None:
            return None
        holding.moment = child.moment()
        holding.dump = child.dumps.begin(holding.moment)
        return holding.dump

    async def _answer(self, task_id: str, request: str, channel: str) -> None:
        holding = self._holdings.get(task_id)
        at_ms, found = (self._now_ms(), Found(reason="ended")) if holding is None else await self.of(holding)
        answer = StackAnswer(
            task_id=task_id,
            attempt=0 if holding is None else holding.task.attempt,
            worker=self._worker_id,
            taken_at_ms=at_ms,
            source=found.source,
            shared=found.shared,
            threads=None if found.threads is None else stacks.bounded(found.threads),
            reason=found.reason,
        )
        try:
            await self._publish(channel, f"{request} {msgspec.json.encode(answer).decode()}")
        except (StoreUnavailable, OutcomeUnknown) as error:
            facts = {"task_id": task_id} if holding is None else holding.facts()
            log.info("a stack could not be told", error=str(error), **facts)

    async def _tell_stall(self, holding: Holding) -> None:
        _, found = await self.of(holding)
        if not holding.ending:
            holding.events.append(("stalled", found.event()))

    def of(self, holding: Holding) -> "asyncio.Task[tuple[int, Found]]":
        """Where it is, and when that was."""
        if (flight := self._flights.get(holding)) is None:
            flight = self._flights[holding] = asyncio.ensure_future(self._take(holding))
            flight.add_done_callback(lambda _: self._loop.call_later(SHARED_S, self._flights.pop, holding, None))
        return flight

    async def _take(self, holding: Holding) -> tuple[int, Found]:
        found = await self._find(holding)
        return self._now_ms(), found

    async def _find(self, holding: Holding) -> Found:
        child = holding.child
        if child is None or not _holds(holding, child):
            return Found(reason="ended")
        if holding.seq > child.received():
            return Found(reason="not_begun")
        if self._paused():
            return Found(reason="paused")
        if (why := obstacle(child.pid)) is not None:
            return Found(reason=why)
        return await (self._of_sync(holding, child) if child.spec.kind == "sync" else self._of_async(holding, child))

    async def _of_sync(self, holding: Holding, child: ChildProcess) -> Found:
        moment = child.moment()
        if child.running() != holding.seq:
            return Found(reason="ended")  # its end is on the way; or its begin, and then the gateway asks again
        text = await child.dumps.take(moment, DUMP_S)
        if not _holds(holding, child) or child.moment() != moment:
            return Found(reason="ended")
        threads = of_handler(parse(text))
        return Found("faulthandler", threads) if threads else Found(reason=obstacle(child.pid) or "no_answer")

    async def _of_async(self, holding: Holding, child: ChildProcess) -> Found:
        asked = self._asked[holding] = self._loop.create_future()
        try:
            if child.ask_stack(holding.seq):
                await asyncio.wait([asked], timeout=LOOP_S)
            moment, text = child.moment(), ""
            if not asked.done() and _holds(holding, child):
                text = await child.dumps.take(moment, DUMP_S)
            if asked.done():
                return Found("loop", asked.result()) if asked.result() else Found(reason="ended")
        finally:
            del self._asked[holding]
        if not _holds(holding, child):
            return Found(reason="ended")
        if not (threads := main_thread(parse(text))) or child.moment() != moment:
            return Found(reason=obstacle(child.pid) or "no_answer")
        return self._of_blocked_loop(holding, child, threads)

    def _of_blocked_loop(self, holding: Holding, child: ChildProcess, threads: list[Thread]) -> Found:
        """The stack is that of whose step it is; who else waits for the loop may see what it waits for."""
        if child.noted() == holding.seq:
            return Found("faulthandler", threads)
        other = self._holdings.of(child, child.noted())
        if other is not None and other.task.spec.tenant != holding.task.spec.tenant:
            return Found(reason="another_task")
        return Found("faulthandler", threads, shared=True)


def _holds(holding: Holding, child: ChildProcess) -> bool:
    return not holding.ending and child.exit is None


def _text(threads: list[Thread]) -> str:
    return stacks.text(stacks.bounded(threads, stacks.ERROR_BYTES))

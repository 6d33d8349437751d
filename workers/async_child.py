"""A child with an event loop, which runs many async tasks side by side and notes whose step is running."""

import asyncio
import contextvars
import inspect
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from taskgate.handlers import Handlers
from workers import chains, execution, trace_context, wire
from workers.attempts import ChildAttempt
from workers.calls import Calls, Threads, calls
from workers.execution import Outcome
from workers.hygiene import Hygiene
from workers.ready import message as ready
from workers.slot import GC_NS, NOTED, RECEIVED, STEPS, Record, Slot, StopReason, boot_ns
from workers.streams import Streams

_IDLE_S = 0.05
_CALL_ENDS_S, _CALL_LOOKS = 1.0, 10
"""A call in a thread that runs on for longer than this after its task has ended is taken to hang. It is counted in
looks: time for which the whole child stood still is one of them at most.
"""

log = structlog.get_logger()


class Run:
    """A task in this child, and what its handler started: asyncio tasks, and calls in threads."""

    def __init__(self, task: wire.Task, attempt: ChildAttempt, record: Record) -> None:
        self.task = task
        self.attempt = attempt
        self.steps_word = record.steps_word
        self.main: asyncio.Task[None] | None = None
        self.started: set[asyncio.Task[Any]] = set()
        self.calls = Calls(record.calls)
        self.cancelable = False
        """Between the handler's start and its end, and not cancelled yet."""


_run: contextvars.ContextVar[Run | None] = contextvars.ContextVar("taskgate_run", default=None)


class AsyncChild:
    """Starts every task it receives at once; how many that are is the supervisor's choice."""

    def __init__(
        self,
        *,
        channel: socket.socket,
        slot: Slot,
        handlers: Handlers,
        spec: wire.ChildSpec,
        arm: Callable[[], None],
        streams: Streams,
    ) -> None:
        self._channel = channel
        self._words = slot.words
        self._records = slot.records
        self._handlers = handlers
        self._result_max_bytes = spec.result_max_bytes
        self._arm_signals = arm
        self._streams = streams
        streams.current = self._writing
        self._runs: dict[int, Run] = {}
        self._strays: set[asyncio.Task[Any]] = set()
        self._finishing = False
        self._check: asyncio.TimerHandle | None = None
        self._undone: set[str] = set()
        """What was taken back while others ran, and is told when nobody does."""
        self._last: wire.Task | None = None

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(Threads())
        for start in self._handlers.starts:
            if inspect.iscoroutinefunction(start):
                self._loop.run_until_complete(start())
            else:
                start()
        self._loop.set_task_factory(self._new_task)
        self._loop.add_signal_handler(signal.SIGUSR1, self._on_stop)
        self._loop.add_reader(self._channel, self._receive)
        self._hygiene = Hygiene(arm=self._arm_signals, restore_streams=self._streams.restore_all)

    def run(self) -> None:
        """Until told to finish, or the supervisor is gone."""
        self._send(ready(self._handlers))
        while not self._finishing or self._runs:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # Out of a callback of some handler; asyncio lets these two through its own guards.
                log.warning("a callback tried to end the child", error=type(error).__name__)

    def _receive(self) -> None:
        while True:
            try:
                order = wire.receive_order(self._channel, wait=False)
            except BlockingIOError:
                return
            if isinstance(order, wire.Task):
                self._words[RECEIVED] = order.seq
                self._begin(order)
                continue
            if isinstance(order, wire.AskStack):
                self._tell_stack(order.seq)
                continue
            self._finishing = True
            self._loop.remove_reader(self._channel)
            if order is None:
                self._runs.clear()
            if not self._runs:
                self._loop.stop()
            return

    def _begin(self, task: wire.Task) -> None:
        started_ns = boot_ns()
        if started_ns >= task.deadline_ns:
            self._send(wire.Refused(task.seq))
            return
        record = self._records[task.record]
        record.begin(task.seq, started_ns, gc_ns=self._words[GC_NS])
        self._words[NOTED] = task.seq
        try:
            attempt = ChildAttempt(task, record, started_ns=started_ns, send=self._send)
        finally:
            self._words[NOTED] = 0
        run = Run(task, attempt, record)
        self._runs[task.seq] = run
        context = contextvars.copy_context()
        context.run(_run.set, run)
        context.run(calls.set, run.calls)
        if task.traceparent:
            context.run(trace_context.enter, task)
        steps = Noted(self._work(run, started_ns), self._words, run)
        run.main = asyncio.Task(steps, loop=self._loop, context=context)

    async def _work(self, run: Run, started_ns: int) -> None:
        task, attempt = run.task, run.attempt
        gc_ns = self._words[GC_NS]
        outcome = await self._outcome(run)
        # From here a late stop finds nothing to cancel: the end is being sent.
        self._runs.pop(task.seq, None)
        self._undone.update(self._streams.install())
        self._cancel_strays(run)
        self._look_for_calls(run, _CALL_LOOKS)
        attempt.close()
        run.calls.close()
        self._last = task
        record = self._records[task.record]
        progress = record.said()
        record.end()
        if (printed := self._streams.last_word(task.seq)) is not None:
            self._send(printed)
        execution.send_done(
            self._send,
            seq=task.seq,
            outcome=outcome,
            attempt=attempt,
            progress=progress,
            run_ns=boot_ns() - started_ns,
            gc_ns=self._words[GC_NS] - gc_ns,
        )
        self._ended(last=task.last)

    async def _outcome(self, run: Run) -> Outcome:
        task, attempt = run.task, run.attempt
        call = execution.prepare(self._handlers.get(task.type), task.type, task.payload)
        if isinstance(call, Outcome):
            return call
        # Not earlier: a coroutine that is cancelled before its first step never runs, and would never report.
        run.cancelable = True
        if (reason := attempt.stop_reason) is not None:
            return execution.stopped(reason, attempt)
        try:
            result = await call.handler.call(call.payload, attempt)
        except BaseException as error:  # noqa: BLE001 — also SystemExit, KeyboardInterrupt: they end this task only
            return execution.failed(call.handler, error, attempt)
        return execution.succeeded(call.handler, result, self._result_max_bytes)

    def _writing(self) -> int:
        """Whose output it is: that of the task in whose context it is written, as long as it runs."""
        run = _run.get()
        return run.task.seq if run is not None and run.task.seq in self._runs else 0

    def _ended(self, *, last: bool) -> None:
        if self._runs:
            return
        if self._finishing or last:
            self._finishing = True
            self._loop.stop()
        elif self._check is None:
            self._check = self._loop.call_later(_IDLE_S, self._tidy)

    def _tidy(self) -> None:
        """Only while nothing runs: a neighbour may be between a change and its undoing."""
        self._check = None
        if self._runs:
            return
        kept, undone = self._hygiene.restore()
        undone += sorted(self._undone.difference(undone))
        self._undone.clear()
        if self._strays:
            kept.append(f"{len(self._strays)} asyncio tasks that cannot be cancelled")
        if (kept or undone) and self._last is not None:
            self._send(wire.Unclean(kept, undone, self._last.id, self._last.type))

    def _look_for_calls(self, run: Run, more: int) -> None:
        """Threads are few, and one that hangs is lost: other threads for who runs here, another child for who comes."""
        hanging = len(run.calls)
        if hanging and more:
            self._loop.call_later(_CALL_ENDS_S / _CALL_LOOKS, self._look_for_calls, run, more - 1)
        elif hanging:
            self._loop.set_default_executor(Threads())
            kept = [f"{hanging} call{'s' * (hanging > 1)} in threads that did not end with their task"]
            self._send(wire.Unclean(kept, [], run.task.id, run.task.type))

    def _on_stop(self) -> None:
        for run in self._runs.values():
            if run.cancelable and run.attempt.cancel_requested and run.main is not None:
                run.cancelable = False
                run.main.cancel()  # takes effect in the loop's next turn: it still is where it was
                if run.attempt.stop_reason is StopReason.TIMEOUT:
                    self._tell_stack(run.task.seq, timed_out=True)

    def _tell_stack(self, seq: int, *, timed_out: bool = False) -> None:
        run = self._runs.get(seq)
        told = chains.of_task(run.main, run.started, run.calls) if run is not None and run.main is not None else []
        self._send(wire.TaskStack(seq, told, timed_out))

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """What a handler starts is stepped under the handler's name, and ends with it."""
        run = _run.get()
        if run is None:
            return asyncio.Task(coro, loop=loop, **options)
        task: asyncio.Task[Any] = asyncio.Task(Noted(coro, self._words, run), loop=loop, **options)
        run.started.add(task)
        task.add_done_callback(run.started.discard)
        return task

    def _cancel_strays(self, run: Run) -> None:
        for task in list(run.started):
            task.cancel()
            self._strays.add(task)
            task.add_done_callback(self._strays.discard)

    def _send(self, message: wire.Message) -> None:
        wire.send(self._channel, message)


class Noted(Coroutine[Any, Any, Any]):
    """A coroutine that writes its task's number into the slot for as long as each step takes."""

    __slots__ = ("_coro", "_own", "_seq", "_words")

    def __init__(self, coro: Coroutine[Any, Any, Any], words: "memoryview[int]", run: Run) -> None:
        self._coro = coro
        self._words = words
        self._seq = run.task.seq
        self._own = run.steps_word

    def send(self, value: Any) -> Any:
        words = self._words
        words[NOTED] = self._seq
        words[STEPS] += 1
        words[self._own] += 1
        try:
            return self._coro.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"{type(error).__name__} in a task of the handler's") from error
        finally:
            words[NOTED] = 0

    def throw(self, *error: Any) -> Any:
        words = self._words
        words[NOTED] = self._seq
        words[STEPS] += 1
        words[self._own] += 1
        try:
            return self._coro.throw(*error)
        except (SystemExit, KeyboardInterrupt) as stop:
            raise RuntimeError(f"{type(stop).__name__} in a task of the handler's") from stop
        finally:
            words[NOTED] = 0

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Any:
        return self._coro.__await__()

    def __getattr__(self, name: str) -> Any:
        """`cr_frame` and the like, for stacks and debuggers."""
        return getattr(self._coro, name)

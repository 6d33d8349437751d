"""A child that runs one sync task at a time, in its main thread."""

import inspect
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any

from taskgate.handlers import Handlers
from workers import execution, trace_context, wire
from workers.attempts import ChildAttempt
from workers.execution import STOPS, Call, Outcome
from workers.hygiene import Hygiene, LeftBehind, Started, memory_limit
from workers.orphans import descendants_of, end_all
from workers.ready import message as ready
from workers.slot import GC_NS, RECEIVED, RUNNING, STARTED_NS, Record, Slot, boot_ns
from workers.streams import UNREAD_S, Streams

_NOTHING = object()
ENDING_S, ENDING_LOOKS = 0.1, 50
PRINTING_S = 1.0
"""Output of what a task has left running is read for that long: then it is one that goes on printing."""
IDLE_MS = 10
"""Nothing to do for so long is idling; a pause between two packets is not."""


class SyncChild:
    """Receives a task, runs it, sends its end. Whoever received a packet owns the task: here, until `Done` is sent."""

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
        streams.current = lambda: self._words[RUNNING]
        self._pid = os.getpid()
        self._arriving = select.poll()
        self._arriving.register(channel, select.POLLIN)
        self._armed: tuple[int, Record] | None = None
        """Sequence and record of the task whose handler runs now."""
        self._last: wire.Task | None = None

    def start(self) -> None:
        for start in self._handlers.starts:
            if not inspect.iscoroutinefunction(start):
                start()
        self._helpers = frozenset(descendants_of(self._pid))
        signal.signal(signal.SIGUSR1, self._on_stop)
        self._started = Started()
        self._hygiene = Hygiene(arm=self._arm_signals, restore_streams=self._streams.restore_all)

    def run(self) -> None:
        """Until told to finish, or the supervisor is gone."""
        self._send(ready(self._handlers))
        while isinstance(order := self._next(), wire.Task):
            self._words[RECEIVED] = order.seq
            if not self._work(order) or order.last:
                return

    def _next(self) -> wire.Order | None:
        try:
            return wire.receive_order(self._channel, wait=False)
        except BlockingIOError:
            if not self._arriving.poll(IDLE_MS):
                self._tell(self._hygiene.before_idling())
            return wire.receive_order(self._channel, wait=True)

    def _work(self, task: wire.Task) -> bool:
        """False: no other task may run beside what this one has left running."""
        started_ns = boot_ns()
        if started_ns >= task.deadline_ns:
            self._send(wire.Refused(task.seq))
            return True
        if undone := self._streams.restore():
            self._tell(LeftBehind([], undone))
        self._last = task
        record = self._records[task.record]
        gc_ns, cpu_ns = self._words[GC_NS], time.process_time_ns()
        record.begin(task.seq, started_ns, cpu_ns=cpu_ns, gc_ns=gc_ns)
        self._words[STARTED_NS] = started_ns
        self._words[RUNNING] = task.seq
        attempt = ChildAttempt(task, record, started_ns=started_ns, send=self._send)
        threads = set(threading.enumerate())
        outcome = self._outcome(task, record, attempt)
        left = False
        if attempt.stop_reason is not None:
            self._end_started()
            left = not threads.issuperset(threading.enumerate())
        behind = self._started.take() and self._left_behind()
        left = not self._streams.settle(PRINTING_S if behind else UNREAD_S) or left
        attempt.close()
        run_ns = boot_ns() - started_ns
        progress = record.said()
        self._words[RUNNING] = 0
        record.end()
        execution.send_done(
            self._send,
            seq=task.seq,
            outcome=outcome,
            attempt=attempt,
            progress=progress,
            run_ns=run_ns,
            cpu_ns=time.process_time_ns() - cpu_ns,
            gc_ns=self._words[GC_NS] - gc_ns,
            left_running=left,
        )
        if behind and not left:
            # Nobody could tell what it prints from what the next task does.
            self._tell(self._hygiene.restore())
        elif not task.last and not left:
            self._tell(self._hygiene.ran(run_ns))
        return not left and not behind

    def _outcome(self, task: wire.Task, record: Record, attempt: ChildAttempt) -> Outcome:
        call = execution.prepare(self._handlers.get(task.type), task.type, task.payload)
        if isinstance(call, Outcome):
            return call
        result: object = _NOTHING
        try:
            limit_mb = call.handler.options.memory_limit_mb
            with nullcontext() if limit_mb is None else memory_limit(limit_mb):
                try:
                    self._armed = task.seq, record
                    # Only now: a stop that came between a look and the arming would be heard by nobody.
                    if (reason := attempt.stop_reason) is not None:
                        return execution.stopped(reason, attempt)
                    result = self._call(call, task, attempt)
                finally:
                    self._armed = None  # before the limit is lifted: no stop may come between
        except BaseException as error:  # noqa: BLE001 — SystemExit and KeyboardInterrupt of handlers end their task only
            self._stay_alone()
            # A stop that arrived after the handler had returned changes nothing.
            if result is _NOTHING:
                return execution.failed(call.handler, error, attempt)
        self._stay_alone()
        return execution.succeeded(call.handler, result, self._result_max_bytes)

    def _call(self, call: Call, task: wire.Task, attempt: ChildAttempt) -> Any:
        if not task.traceparent:
            return call.handler.call(call.payload, attempt)
        with trace_context.entered(task):
            return call.handler.call(call.payload, attempt)

    def _left_behind(self) -> bool:
        """Whether processes that the task has started live on; those that are just ending have a moment for it."""
        for _ in range(ENDING_LOOKS):
            if not self._hygiene.started():
                return False
            time.sleep(ENDING_S / ENDING_LOOKS)
        return True

    def _end_started(self) -> None:
        """What a stopped task has started ends with it, before its end is told; not what was there before any task."""
        while started := [pid for pid in descendants_of(self._pid) if pid not in self._helpers]:
            end_all(started)

    def _stay_alone(self) -> None:
        """A handler that forked and came back in both processes: only one of them is the child."""
        if os.getpid() != self._pid:
            os._exit(1)

    def _on_stop(self, _signal: int, _frame: FrameType | None) -> None:
        """Raise in the handler, once, if it is that very task that is to stop."""
        if self._armed is None or os.getpid() != self._pid:
            return
        seq, record = self._armed
        reason = record.stop_reason(seq)
        if reason is not None:
            self._armed = None
            raise STOPS[reason]

    def _tell(self, found: LeftBehind) -> None:
        if (found.kept or found.undone) and self._last is not None:
            self._send(wire.Unclean(found.kept, found.undone, self._last.id, self._last.type))

    def _send(self, message: wire.Message) -> None:
        wire.send(self._channel, message)

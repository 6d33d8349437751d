"""Running what was claimed: pools and the parts around them, and what a child's words and its death mean."""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.models import TypeInfo
from taskgate.contract.states import ErrorKind
from taskgate.contract.store import Store
from taskgate.footprint import PIPELINE
from taskgate.settings import Settings
from taskgate.tracing import Traces
from workers import endings
from workers.background import Background
from workers.blame import judge
from workers.children import ChildProcess, ChildSpec, Exit, StopReason
from workers.claims import Room
from workers.emits import Emits
from workers.ends import Ends
from workers.guard_client import GuardClient
from workers.handover import HandOver
from workers.holdings import Holding, Holdings
from workers.lease import Lease
from workers.memory import MemoryWatch
from workers.metrics import Metrics
from workers.orphans import Orphans
from workers.outbox import Outbox
from workers.output import Captured
from workers.pool import Pool
from workers.procstat import OomKills
from workers.slot import Progress, boot_ns
from workers.stacks import Stacks
from workers.stops import Stops
from workers.telemetry import Telemetry
from workers.traces import AttemptTraces
from workers.wire import Checkpoint, Done, Emitted, HandlerInfo, Kind, Message, Printed, Ready, Refused, TaskStack

log = structlog.get_logger()

KEEP_ALONE_S = 5.0
"""Children for tasks that must run alone are kept so long after the last such task was seen waiting."""
SWEEP_AGAIN_S = 0.05
OUTSIDE_BYTES = 4096
"""What is printed outside of tasks goes into the log of the supervisor, so much of it a line."""
ELSEWHERE_MS = 1000
"""A task whose schema another supervisor serves is put back that long."""


class Runner:
    """Owns pools and holdings. Every method runs in the supervisor's loop and returns at once."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        outbox: Outbox,
        lease: Lease,
        guard: GuardClient,
        *,
        worker_id: str,
        now_ms: Callable[[], int],
        on_room: Callable[[], None],
        on_types: Callable[[], None],
        traces: Traces | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._store = store
        self._lease = lease
        self._guard = guard
        self._now_ms = now_ms
        self._on_room = on_room
        self._on_types = on_types
        self._background = Background()
        self._oom_kills = OomKills()
        self._orphans = Orphans(self._ours)
        self.holdings = Holdings()
        self.handlers: dict[str, HandlerInfo] = {}
        self.types: dict[str, TypeInfo] = {}
        self._unserved: set[str] = set()
        self._last_words: dict[ChildProcess, Done] = {}
        """What is told when the child that said it is dead."""
        self._sync = self._pool("sync", settings.worker_processes, PIPELINE)
        self._async = self._pool("async", settings.async_processes, settings.async_slots)
        self._alone = self._pool("async", 0, 1, alone=True)
        self._alone_until_s = 0.0
        self.pools = {"sync": self._sync, "async": self._async, "alone": self._alone}
        self.stacks = Stacks(
            self.holdings, worker_id=worker_id, now_ms=now_ms, paused=lambda: guard.paused, publish=store.notify
        )
        self.telemetry = Telemetry(
            self.holdings,
            outbox,
            children=self._children,
            now_ms=now_ms,
            paused=lambda: guard.paused,
            stall_after_s=settings.stall_after_s,
            stale=self._stale,
            stalled=self.stacks.stalled,
            metrics=self._metrics,
        )
        spans = None if traces is None else AttemptTraces(traces, worker_id=worker_id, below=settings.trace_parent)
        self.ends = Ends(
            settings,
            self.holdings,
            outbox,
            self.telemetry,
            handlers=self.handlers,
            worker_id=worker_id,
            traces=spans,
            metrics=self._metrics,
        )
        self._stops = Stops(
            self.holdings, self.stacks, self.ends.facts, paused_ns=lease.paused_ns, metrics=self._metrics
        )
        self.handover = HandOver(
            self.pools,
            self.holdings,
            self.ends,
            self._stops,
            self.telemetry,
            MemoryWatch(self.holdings, types=self.types, over_limit=self._stops.over_memory),
            types=self.types,
            handlers=self.handlers,
            traces=spans,
            metrics=self._metrics,
        )

    def _pool(self, kind: Kind, size: int, slots: int, *, alone: bool = False) -> Pool:
        settings = self._settings
        spec = ChildSpec(
            kind=kind,
            handlers=settings.handlers,
            slots=slots,
            result_max_bytes=int(settings.result_max_bytes),
            log_format=settings.log_format,
            log_level=settings.log_level,
            alone=alone,
            keys_hold=settings.partitions == 1,
        )
        return Pool(
            spec,
            size,
            guard=self._guard,
            max_tasks=settings.child_max_tasks,
            max_rss_bytes=settings.child_max_rss_mb and settings.child_max_rss_mb << 20,
            on_message=self._message,
            on_exit=self._exited,
            on_change=self._on_room,
        )

    def room(self) -> Room:
        """Free slots; none while the guard is away or the lease does not hold."""
        if not self._guard.alive or not self._lease.holds:
            return Room(0, 0, 0, 0)
        sync = self._sync
        return Room(sync.free(), sync.virgins(), self._async.free(), self._alone.free(), sync.depth)

    def cancel(self, task_id: str) -> None:
        """The store says `canceling`. Repeating it changes nothing."""
        holding = self.holdings.get(task_id)
        if holding is not None:
            self._stops.stop(holding, StopReason.CANCEL)

    def lost(self, task_id: str, epoch: int) -> None:
        """The store says that this attempt is not ours any more: stop it, write nothing."""
        holding = self.holdings.get(task_id)
        if holding is None or holding.task.epoch != epoch or holding.ending or holding.lost:
            return
        holding.lost = True
        self.ends.is_anothers(holding)
        log.warning("attempt is lost", **self.ends.facts(holding))
        if holding.child is None:
            self.ends.forget(holding)
        else:
            self._metrics.killed(holding.child, "lost")
            holding.child.kill()  # before the answered beat lets the guard resume it; guard or no guard

    def take_back_unread(self) -> None:
        """Drain: what no child has received goes back."""
        for child in self._children():
            self.handover.take_back(child)

    def drain(self, grace_s: float) -> None:
        """What still runs gets its soft signal."""
        for holding in self.holdings:
            self._stops.stop(holding, StopReason.DRAIN, grace_s=grace_s, kill=False)

    def kill_all(self) -> None:
        """What has not stopped by the end of the drain."""
        for child in self._children():
            for seq in child.outstanding:
                if (holding := self.holdings.of(child, seq)) and holding.stop and seq <= child.received():
                    self._stops.killed(holding, holding.stop.name.lower())
            if child.load:
                child.kill()

    def _stale(self, holding: Holding) -> None:
        self.ends.count_stale(holding)

    def _children(self) -> list[ChildProcess]:
        return [child for pool in self.pools.values() for child in pool.children]

    def _message(self, child: ChildProcess, message: Message) -> None:
        match message:
            case Done():
                self._done(child, message)
            case Printed():
                self._printed(child, message)
            case Emitted(seq):
                if holding := self.holdings.of(child, seq):
                    self._emitted(holding, message)
            case Checkpoint(seq, data):
                if holding := self.holdings.of(child, seq):
                    holding.checkpoint, holding.spoke_ns = data, boot_ns()
            case TaskStack():
                self.stacks.heard(child, message)
            case Refused(seq):
                if holding := self.holdings.of(child, seq):
                    self.ends.hand_back(holding, reason="deadline", ran=False)
            case Ready(handlers):
                self._learn(handlers)
                self._on_types()
                self._on_room()

    def _printed(self, child: ChildProcess, printed: Printed) -> None:
        holding = self.holdings.of(child, printed.seq)
        if holding is not None:
            if holding.output is None:
                holding.output = Captured()
            holding.output.add(printed, self._now_ms())
            holding.spoke_ns = boot_ns()
        elif printed.data:
            shown = printed.data[:OUTSIDE_BYTES]
            more = {} if len(shown) == len(printed.data) else {"dropped_bytes": len(printed.data) - len(shown)}
            text = shown.decode("utf-8", "backslashreplace")
            say = log.warning if printed.stream == "stderr" else log.info
            say("output outside of tasks", pid=child.pid, stream=printed.stream, text=text, **more)

    def _emitted(self, holding: Holding, one: Emitted) -> None:
        holding.spoke_ns = boot_ns()
        holding.emits = holding.emits or Emits()
        holding.emits.take(one, holding.events, others=(each.emits for each in self.holdings if each.emits))

    def slots(self, task_type: str) -> int:
        """How many tasks of that type run here at a time; 0: not known, or their processes have to be started first."""
        handler = self.handlers.get(task_type)
        if handler is None or handler.fresh_process:
            return 0
        pool = self.pools[self.types[task_type].kind]
        return pool.size * (pool.spec.slots if pool.spec.kind == "async" else 1)

    def _learn(self, handlers: Sequence[HandlerInfo]) -> None:
        """Only what there are children for: nothing else may be served."""
        for each in handlers:
            info = each.type_info()
            if self.pools[info.kind].size:
                self.handlers[each.type], self.types[each.type] = each, info
            elif each.type not in self._unserved:
                self._unserved.add(each.type)
                log.warning("not served: there are no children of its kind", task_type=each.type, kind=info.kind)

    def _done(self, child: ChildProcess, done: Done) -> None:
        holding = self.holdings.of(child, done.seq)
        if holding is None:
            return
        pool = self.pools[child.spec.pool]
        if done.left_running and child.exit is None:
            log.warning("what a task has started runs on; its child is killed", **self.ends.facts(holding))
            pool.left_behind[holding.task.spec.type] += 1
            self._stops.killed(holding, "what it started runs on")
            self._last_words[child] = done
            pool.retire(child)
            child.kill()
            return
        pool.ran(child, done.run_ns)
        self._on_room()
        pool.let_go(child)
        if done.outcome == "drained":
            self.ends.hand_back(holding, reason="drain")
        elif endings.is_invalid(done) and self._another_schema(holding):
            self._background.spawn(self._send_elsewhere(holding, done))
        else:
            self._finish(holding, done)

    def _finish(self, holding: Holding, done: Done) -> None:
        progress = done.progress or holding.progress
        if done.emitted:
            holding.emits = holding.emits or Emits()
            holding.emits.tell_gap(holding.events, before=done.emitted + 1)
        effort = self.telemetry.ended(
            holding,
            run_cpu_ms=None if done.cpu_ns is None else done.cpu_ns // 1_000_000,
            gc_ms=done.gc_ns // 1_000_000,
        )
        self.ends.finish(
            holding,
            endings.outcome_of(done),
            result=done.result,
            error=self._error_of(holding, done),
            retry_after_s=done.retry_after_s,
            progress=self._shown(holding, progress),
            effort=effort,
            submitted=[
                endings.submission(each, holding.task.spec, self.types, trace=holding.trace) for each in done.submitted
            ],
            run_ms=done.run_ns // 1_000_000,
        )

    def _shown(self, holding: Holding, progress: Progress | None) -> bytes:
        return b"" if progress is None else holding.shown(progress, now_ms=self._now_ms(), now_ns=boot_ns())

    def _error_of(self, holding: Holding, done: Done) -> bytes:
        if done.outcome == "timeout":
            return endings.with_stack(done.error, self.stacks.of_end(holding))
        return b"" if done.outcome == "canceled" else done.error

    def _another_schema(self, holding: Holding) -> bool:
        info = self.types.get(holding.task.spec.type)
        return info is not None and holding.task.spec.schema not in ("", info.schema_hash)

    async def _send_elsewhere(self, holding: Holding, done: Done) -> None:
        """A payload accepted under another schema does not fit here: it waits while somebody serves that one."""
        spec = holding.task.spec
        try:
            served = {name for worker in await self._store.workers() for name in worker.types}
        except (StoreUnavailable, OutcomeUnknown):
            served = {f"{spec.type}:{spec.schema}"}  # not known now: asked again at its next claim
        if f"{spec.type}:{spec.schema}" in served:
            self.ends.hand_back(holding, reason="schema", delay_ms=ELSEWHERE_MS)
        else:
            self._finish(holding, done)

    def _exited(self, child: ChildProcess, how: Exit) -> None:
        """What it had sent has been read by now, and won."""
        if (last_words := self._last_words.pop(child, None)) is not None:
            self._done(child, last_words)
        self.handover.take_back(child)
        held = [found for seq in sorted(child.outstanding) if (found := self.holdings.of(child, seq)) is not None]
        if held:
            self._metrics.deaths.add("exit" if how.signal is None else endings.signal_name(how.signal))
        for each in held:
            log.warning("child died", exit_code=how.code, signal=how.signal, **self.ends.facts(each))
        oom = self._oom_kills.recent()
        verdict = judge(child, held, how, paused=self._guard.paused)
        for holding in held:
            if holding.lost:
                self.ends.forget(holding)
            elif holding.killed and holding.stop is StopReason.DRAIN and holding.killed_as is None:
                self.ends.hand_back(holding, reason="drain")
            elif holding in verdict.guilty:
                self._charge(holding, child, how, oom=oom)
            else:
                self.ends.hand_back(holding, reason="neighbour" if verdict.known else "suspect")
        if held and not verdict.known:
            self.suspects_wait(True)
        self.telemetry.gone(child)
        self.sweep()

    def _charge(self, holding: Holding, child: ChildProcess, how: Exit, *, oom: bool) -> None:
        effort = self.telemetry.ended(holding)
        progress = self.telemetry.last_progress(holding)
        if holding.stop is StopReason.CANCEL:
            self.ends.finish(holding, "canceled", progress=self._shown(holding, progress), effort=effort)
            return
        kind, message = endings.cause_of_death(holding, child, how, oom=oom, lease=self._guard.paused)
        if kind is ErrorKind.LEASE or (kind is ErrorKind.MEMORY and not child.killed):
            self._metrics.killed(child, "lease" if kind is ErrorKind.LEASE else "kernel_memory")
        stack = self.stacks.of_death(holding, child, how)
        self.ends.finish(
            holding,
            "retry",
            error=endings.after_death(holding, how, kind=kind, message=message, pid=child.pid, stack=stack),
            retry_after_s=0.0 if kind is ErrorKind.LEASE else None,
            progress=self._shown(holding, progress),
            effort=effort,
        )

    def fresh_waits(self, wait: bool) -> None:
        self._sync.fresh_waits = wait

    def suspects_wait(self, wait: bool) -> None:
        """Whether tasks that must run alone are waiting: there are children for them while they do, and after it."""
        now_s = time.monotonic()
        if wait:
            self._alone_until_s = now_s + KEEP_ALONE_S
            if not self._alone.size:
                self._alone.resize(self._settings.async_processes)
        elif self._alone.size and now_s > self._alone_until_s and not any(child.load for child in self._alone.children):
            self._alone.resize(0)

    def sweep(self) -> None:
        """End what dead children left; again while there is something: it may leave orphans itself, and be a zombie."""
        if self._orphans.sweep():
            asyncio.get_running_loop().call_later(SWEEP_AGAIN_S, self.sweep)

    def _ours(self) -> set[int]:
        return {child.pid for child in self._children()} | ({self._guard.pid} if self._guard.pid else set())

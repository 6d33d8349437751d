"""Running what was claimed: hand-over, timeouts and cancels, and every way in which an attempt can end."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from taskgate.contract.models import Claimed, HandBack, TypeInfo
from taskgate.contract.states import ErrorKind
from taskgate.contract.store import Store
from taskgate.settings import Settings
from workers import endings
from workers.background import Background
from workers.children import ChildProcess, ChildSpec, Exit, StopReason
from workers.claims import Room
from workers.guard_client import GuardClient
from workers.holdings import Holding, Holdings
from workers.lease import Lease
from workers.outbox import Outbox
from workers.pool import PIPELINE, PIPELINE_BEHIND_NS, Pool
from workers.procstat import oom_kills
from workers.slot import boot_ns
from workers.telemetry import Telemetry
from workers.wire import Checkpoint, Done, Emitted, HandlerInfo, Message, Ready, Refused

log = structlog.get_logger()

KILL_AFTER_S = 5.0
"""Between the soft signal and SIGKILL, for cancels and timeouts."""
ELSEWHERE_MS = 1000
"""A task whose schema another supervisor serves is put back that long."""


class Runner:
    """Owns the holdings. Every method runs in the supervisor's loop and returns at once; ends go to the outbox."""

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
    ) -> None:
        self._settings = settings
        self._store = store
        self._outbox = outbox
        self._lease = lease
        self._worker_id = worker_id
        self._now_ms = now_ms
        self._on_room = on_room
        self._on_types = on_types
        self._loop = asyncio.get_running_loop()
        self.guard = guard
        self.holdings = Holdings()
        self.handlers: dict[str, HandlerInfo] = {}
        self.types: dict[str, TypeInfo] = {}
        self.stale_writes = 0
        self.sync = self._pool("sync", settings.worker_processes, PIPELINE)
        self.asynchronous = self._pool("async", settings.async_processes, settings.async_slots)
        self.pools = (self.sync, self.asynchronous)
        self.telemetry = Telemetry(
            self.holdings,
            outbox,
            children=lambda: [child for pool in self.pools for child in pool.children],
            types=self.types,
            now_ms=now_ms,
            paused=lambda: guard.paused,
            stall_after_s=settings.stall_after_s,
            over_limit=self._over_memory,
            stale=self._count_stale,
        )
        self._oom_kills = oom_kills()
        self._background = Background()

    def _pool(self, kind: str, size: int, slots: int) -> Pool:
        settings = self._settings
        spec = ChildSpec(
            kind=kind,  # type: ignore[arg-type]
            handlers=settings.handlers,
            slots=slots,
            result_max_bytes=int(settings.result_max_bytes),
            log_format=settings.log_format,
            log_level=settings.log_level,
        )
        return Pool(
            spec,
            size,
            guard=self.guard,
            on_message=self._message,
            on_exit=self._exited,
            on_change=self._on_room,
        )

    def room(self) -> Room:
        """Free slots; none while the guard is away or the lease does not hold."""
        if not self.guard.alive or not self._lease.holds:
            return Room(0, 0, 0)
        return Room(self.sync.free(), self.sync.virgins(), self.asynchronous.free())

    def take(self, task: Claimed) -> None:
        """Hand a claimed task to a child; what no child can take now goes back."""
        holding = Holding(task)
        self.holdings.add(holding)
        info, handler = self.types.get(task.spec.type), self.handlers.get(task.spec.type)
        if info is None or handler is None:
            self._hand_back(holding, reason="taken_back", ran=False)
            return
        pool = self.sync if info.kind == "sync" else self.asynchronous
        child = pool.choose(virgin=handler.fresh_process)
        if child is None:
            self._hand_back(holding, reason="taken_back", ran=False)
            return
        if pool.spec.kind == "sync":
            if pool.depth == 1:
                self.telemetry.starts(child)
            else:
                self.telemetry.forget_base(child)
        seq = child.hand_over(task, deadline_ns=self._lease.deadline_ns, last=handler.fresh_process)
        if seq is None:
            self._hand_back(holding, reason="taken_back", ran=False)
            return
        pool.used(child)
        holding.handed_ns = boot_ns()
        self.holdings.assign(holding, child, seq)
        self._later(holding, task.spec.timeout_s, partial(self._timed_out, holding))
        if pool.spec.kind == "sync" and child.load == 2:
            self._loop.call_later(PIPELINE_BEHIND_NS / 1e9, self._unblock_pipeline, child)

    def cancel(self, task_id: str) -> None:
        """The store says `canceling`. Repeating it changes nothing."""
        holding = self.holdings.get(task_id)
        if holding is not None:
            self._stop(holding, StopReason.CANCEL)

    def lost(self, task_id: str, epoch: int) -> None:
        """The store says that this attempt is not ours any more: stop it, write nothing."""
        holding = self.holdings.get(task_id)
        if holding is None or holding.task.epoch != epoch or holding.ending:
            return
        holding.lost = True
        self.stale_writes += 1
        log.warning("attempt is lost", **self._facts(holding))
        if holding.child is None:
            self.holdings.drop(holding)
        else:
            self.guard.lost(holding.child.pid)

    def give_back_unknown(self, partition: int, task_id: str, epoch: int) -> None:
        """A claim whose reply never came: ours in the store, in no child of ours."""
        item = HandBack(id=task_id, epoch=epoch, ran=False, reason="unknown", retention_ms=self._retention_ms)
        self._outbox.hand_back(partition, item)

    def take_back_unread(self) -> None:
        """Drain: what no child has received goes back."""
        for pool in self.pools:
            for child in pool.children:
                self._take_back(child)

    def drain(self) -> None:
        """What still runs gets its soft signal."""
        for holding in self.holdings:
            self._stop(holding, StopReason.DRAIN, kill=False)

    def kill_all(self) -> None:
        for pool in self.pools:
            for child in pool.children:
                if child.load:
                    child.kill()

    @property
    def _retention_ms(self) -> int:
        return self._settings.retention_s * 1000

    def _message(self, child: ChildProcess, message: Message) -> None:
        match message:
            case Done():
                self._done(child, message)
            case Emitted(seq, name, data):
                if holding := self.holdings.of(child, seq):
                    holding.events.append(("custom", b'{"name":%b,"data":%b}' % (endings.json_text(name), data)))
            case Checkpoint(seq, data):
                if holding := self.holdings.of(child, seq):
                    holding.checkpoint = data
            case Refused(seq):
                if holding := self.holdings.of(child, seq):
                    self._hand_back(holding, reason="deadline", ran=False)
            case Ready(handlers):
                self._learn(handlers)

    def _learn(self, handlers: list[HandlerInfo]) -> None:
        self.handlers.update({each.type: each for each in handlers})
        self.types.update({each.type: each.type_info() for each in handlers})
        self._on_types()

    def _done(self, child: ChildProcess, done: Done) -> None:
        holding = self.holdings.of(child, done.seq)
        if holding is None:
            return
        pool = self.sync if child.spec.kind == "sync" else self.asynchronous
        pool.ran(child, done.run_ns)
        self._on_room()
        pool.let_go(child)
        if done.outcome == "drained":
            self._hand_back(holding, reason="drain")
        elif _is_invalid(done) and self._another_schema(holding):
            self._background.spawn(self._send_elsewhere(holding, done))
        else:
            self._finish_done(holding, done)

    def _finish_done(self, holding: Holding, done: Done) -> None:
        shared = done.cpu_ns is None
        progress = done.progress or holding.progress
        effort = self.telemetry.ended(
            holding,
            run_cpu_ms=None if done.cpu_ns is None else done.cpu_ns // 1_000_000,
            gc_ms=done.gc_ns // 1_000_000,
            shared=shared,
        )
        self._finish(
            holding,
            endings.outcome_of(done),
            result=done.result,
            error=b"" if done.outcome == "canceled" else done.error,
            retry_after_s=done.retry_after_s,
            progress=b"" if progress is None else progress.json(now_ms=self._now_ms(), now_ns=boot_ns()),
            effort=effort,
            submitted=[endings.submission(each, holding.task.spec, self.types) for each in done.submitted],
            run_ms=done.run_ns // 1_000_000,
        )

    def _another_schema(self, holding: Holding) -> bool:
        info = self.types.get(holding.task.spec.type)
        return info is not None and holding.task.spec.schema not in ("", info.schema_hash)

    async def _send_elsewhere(self, holding: Holding, done: Done) -> None:
        """A payload accepted under another schema does not fit here: it waits while somebody serves that one."""
        spec = holding.task.spec
        served = {name for worker in await self._store.workers() for name in worker.types}
        if f"{spec.type}:{spec.schema}" in served:
            self._hand_back(holding, reason="schema", delay_ms=ELSEWHERE_MS)
        else:
            self._finish_done(holding, done)

    def _exited(self, child: ChildProcess, how: Exit) -> None:
        self._take_back(child)
        sample = child.sample()
        held = [found for seq in sorted(child.outstanding) if (found := self.holdings.of(child, seq)) is not None]
        grown = oom_kills() > self._oom_kills
        self._oom_kills = oom_kills()
        guilty = {h for h in held if h.killed_as or h.stop}
        if child.spec.kind == "sync":
            guilty |= set(held)
        elif not guilty and sample.noted:
            guilty |= {h for h in held if h.seq == sample.noted}
        if held:
            log.warning("child died", pid=child.pid, exit_code=how.code, signal=how.signal, tasks=len(held))
        for holding in held:
            self._end_dead(holding, child, how, guilty=holding in guilty, oom=grown and how.signal == 9)
        self.telemetry.gone(child)

    def _end_dead(self, holding: Holding, child: ChildProcess, how: Exit, *, guilty: bool, oom: bool) -> None:
        if holding.lost:
            self._forget(holding)
        elif holding.stop is StopReason.DRAIN:
            self._hand_back(holding, reason="drain")
        elif not guilty:
            self._hand_back(holding, reason="neighbour")
        else:
            kind, message = _cause(holding, how, oom=oom)
            canceled = holding.stop is StopReason.CANCEL
            error = b"" if canceled else endings.after_death(holding, how, kind=kind, message=message, pid=child.pid)
            outcome = "canceled" if canceled else "retry"
            effort = self.telemetry.ended(holding, run_cpu_ms=None, gc_ms=0, shared=child.spec.kind == "async")
            self._finish(holding, outcome, error=error, effort=effort)

    def _timed_out(self, holding: Holding) -> None:
        """Timers count from the hand-over: one that stood in a pipeline gets the rest of its time."""
        if holding.child is None or holding.ending:
            return
        sample = holding.child.sample()
        task = sample.tasks.get(holding.seq)
        begun_ns = task.started_ns if task is not None and task.started_ns else boot_ns()
        rest_s = holding.task.spec.timeout_s - (boot_ns() - begun_ns) / 1e9
        if rest_s > 0.001:
            self._later(holding, rest_s, partial(self._timed_out, holding))
        else:
            self._stop(holding, StopReason.TIMEOUT)

    def _stop(self, holding: Holding, reason: StopReason, *, kill: bool = True) -> None:
        """Ask softly, then kill. A cancel overrides a drain, a timeout neither."""
        if holding.child is None or holding.ending or holding.stop in (reason, StopReason.CANCEL):
            return
        log.info("stopping", reason=reason.name.lower(), **self._facts(holding))
        holding.stop = reason
        holding.child.soft_stop(holding.seq, reason)
        if kill:
            self._later(holding, KILL_AFTER_S, partial(self._kill, holding, holding.child))

    def _kill(self, holding: Holding, child: ChildProcess) -> None:
        """It did not end by itself. The task that blocks an event loop is to blame, not the one that waited."""
        if holding.ending or holding.child is not child:
            return
        sample = child.sample()
        blocker = self.holdings.of(child, sample.noted) if child.spec.kind == "async" and sample.noted else None
        if blocker is not None and blocker is not holding and holding.stop is StopReason.TIMEOUT:
            holding.stop = None
            blocker.killed_as = ErrorKind.TIMEOUT
        log.warning("killing", **self._facts(holding))
        child.kill()

    def _over_memory(self, holding: Holding, rss_bytes: int) -> None:
        if holding.child is not None and holding.killed_as is None:
            log.warning("over its memory limit, killing", rss_bytes=rss_bytes, **self._facts(holding))
            holding.killed_as = ErrorKind.MEMORY
            holding.child.kill()

    def _unblock_pipeline(self, child: ChildProcess) -> None:
        """Nothing waits behind a task that has run for 50 ms."""
        if child.exit is not None or child.load < 2:
            return
        sample = child.sample()
        if sample.running and boot_ns() - sample.started_ns >= PIPELINE_BEHIND_NS:
            self.sync.slow(child)
            self._take_back(child)
        else:
            self._loop.call_later(PIPELINE_BEHIND_NS / 1e9, self._unblock_pipeline, child)

    def _take_back(self, child: ChildProcess) -> None:
        for seq in child.take_back():
            if (holding := self.holdings.of(child, seq)) is not None:
                self._hand_back(holding, reason="taken_back", ran=False)

    def _finish(self, holding: Holding, outcome: str, *, run_ms: int | None = None, **fields: object) -> None:
        item = endings.finish(
            holding,
            outcome,
            handler=self.handlers.get(holding.task.spec.type),
            retention_ms=self._retention_ms,
            dead_retention_ms=self._settings.dead_retention_s * 1000,
            **fields,  # type: ignore[arg-type]
        )
        unwritten = self._release(holding)

        def send(_: object = None) -> None:
            answer = self._outbox.finish(holding.task.partition, item)
            answer.add_done_callback(partial(self._finished, holding, run_ms))

        if unwritten is None:
            send()
        else:
            unwritten.add_done_callback(send)

    def _hand_back(self, holding: Holding, *, reason: str, ran: bool = True, delay_ms: int = 0) -> None:
        if holding.ending:
            return
        item = HandBack(
            id=holding.id,
            epoch=holding.task.epoch,
            ran=ran,
            delay_ms=delay_ms,
            reason=reason,
            retention_ms=self._retention_ms,
        )
        unwritten = self._release(holding)

        def send(_: object = None) -> None:
            answer = self._outbox.hand_back(holding.task.partition, item)
            answer.add_done_callback(partial(self._handed_back, holding, reason))

        if unwritten is None:
            send()
        else:
            unwritten.add_done_callback(send)

    def _release(self, holding: Holding) -> asyncio.Future[str | None] | None:
        """The child is done with it. What it still has to tell goes first."""
        holding.ending = True
        for timer in holding.timers:
            timer.cancel()
        self.holdings.released_by_child(holding)
        return self.telemetry.flush(holding)

    def _finished(self, holding: Holding, run_ms: int | None, answer: asyncio.Future[str]) -> None:
        self.holdings.drop(holding)
        if answer.cancelled() or answer.exception() is not None:
            log.error("finish failed", error=None if answer.cancelled() else repr(answer.exception()))
            return
        status = answer.result()
        if status in ("stale", "not_found"):
            self._count_stale(holding)
        log.info("attempt finished", outcome=status, duration_ms=run_ms, **self._facts(holding))

    def _handed_back(self, holding: Holding, reason: str, answer: asyncio.Future[str]) -> None:
        self.holdings.drop(holding)
        status = "failed" if answer.cancelled() or answer.exception() else answer.result()
        if status in ("stale", "not_found"):
            self._count_stale(holding)
        log.debug("handed back", reason=reason, outcome=status, **self._facts(holding))

    def _count_stale(self, holding: Holding) -> None:
        self.stale_writes += 1
        log.warning("stale write refused", **self._facts(holding))

    def _forget(self, holding: Holding) -> None:
        holding.ending = True
        for timer in holding.timers:
            timer.cancel()
        self.holdings.drop(holding)

    def _later(self, holding: Holding, seconds: float, call: Callable[[], None]) -> None:
        holding.timers.append(self._loop.call_later(seconds, call))

    def _facts(self, holding: Holding) -> dict[str, object]:
        task = holding.task
        return {
            "task_id": task.id,
            "task_type": task.spec.type,
            "attempt": task.attempt,
            "worker_id": self._worker_id,
            "pid": holding.child.pid if holding.child is not None else None,
        }


def _is_invalid(done: Done) -> bool:
    return done.outcome == "failed" and b'"kind":"invalid_payload"' in done.error[:64]


def _cause(holding: Holding, how: Exit, *, oom: bool) -> tuple[ErrorKind, str]:
    if holding.killed_as == ErrorKind.MEMORY:
        return ErrorKind.MEMORY, "the task passed its memory limit"
    if holding.killed_as == ErrorKind.TIMEOUT or holding.stop is StopReason.TIMEOUT:
        return ErrorKind.TIMEOUT, f"ran longer than {holding.task.spec.timeout_s:g} s and did not stop when asked"
    if oom:
        return ErrorKind.MEMORY, "the kernel killed the child: out of memory"
    return ErrorKind.CRASH, endings.death_message(how)

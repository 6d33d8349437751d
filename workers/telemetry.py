"""Telemetry: samples slots and /proc four times a second and writes what changed, in groups."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import structlog

from taskgate.contract.models import Report
from taskgate.contract.states import Health
from workers import health
from workers.children import ChildProcess
from workers.holdings import Holding, Holdings
from workers.outbox import Outbox
from workers.procstat import Numbers, ProcStat
from workers.slot import Sample, TaskSample, boot_ns

log = structlog.get_logger()

EVERY_S = 0.25
EFFORT_EVERY_NS = 1_000_000_000
EVENT_EVERY_NS = 10_000_000_000
JUDGED_OVER_NS = 1_000_000_000
"""Health is judged over that long: shorter intervals mistake one tick of the CPU clock for a trend."""


@dataclass(slots=True)
class _Track:
    """What was seen of one child while it works."""

    stat: ProcStat
    base: Numbers | None = None
    """At the hand-over of the task now running; None where that was not measured."""
    judged: Numbers | None = None
    judged_ns: int = 0


@dataclass(slots=True)
class _Told:
    """What was last written of one attempt."""

    progress_at_ns: int = 0
    stage: str = ""
    health: str = ""
    effort_ns: int = 0
    event_ns: int = 0
    lasting: asyncio.Future[str | None] | None = None
    """The last report that carried what must not be lost."""

    @property
    def is_sending(self) -> bool:
        return self.lasting is not None and not self.lasting.done()


class Telemetry:
    """Looks from outside only: nothing here waits for a child."""

    def __init__(
        self,
        holdings: Holdings,
        outbox: Outbox,
        *,
        children: Callable[[], Iterable[ChildProcess]],
        now_ms: Callable[[], int],
        paused: Callable[[], bool],
        stall_after_s: float,
        stale: Callable[[Holding], None],
    ) -> None:
        self._holdings = holdings
        self._outbox = outbox
        self._children = children
        self._now_ms = now_ms
        self._paused = paused
        self._stall_after_ms = stall_after_s * 1000
        self._stale = stale
        self._tracks: dict[ChildProcess, _Track] = {}
        self._told: dict[Holding, _Told] = {}

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            started = time.monotonic()
            for child in self._children():
                if child.load and child.exit is None:
                    self._look(child)
            await asyncio.sleep(max(0.01, EVERY_S - (time.monotonic() - started)))

    def starts(self, child: ChildProcess, *, alone: bool) -> None:
        """A child is given a task. Its effort counts from here if it is `alone`, with no other of that child."""
        track = self._track(child)
        if not alone or child.load:
            track.base = None
            return
        track.base = track.judged = track.stat.sample()
        track.judged_ns = boot_ns()

    def forget(self, holding: Holding) -> None:
        self._told.pop(holding, None)

    def gone(self, child: ChildProcess) -> None:
        track = self._tracks.pop(child, None)
        if track is not None:
            track.stat.close()

    def ended(self, holding: Holding, *, run_cpu_ms: int | None, gc_ms: int, shared: bool) -> bytes:
        """Effort of an attempt that has ended, as JSON."""
        track = self._tracks.get(holding.child) if holding.child is not None else None
        wait_ms = rss = None
        if track is not None and track.base is not None and not shared:
            now = track.stat.sample()
            if now is not None:
                wait_ms, rss = now.wait_ms - track.base.wait_ms, now.rss_bytes
                holding.rss_peak = max(holding.rss_peak, rss)
        return _effort(holding, cpu_ms=run_cpu_ms, wait_ms=wait_ms, gc_ms=gc_ms, rss=rss, shared=shared)

    def flush(self, holding: Holding) -> asyncio.Future[str | None] | None:
        """Send what an attempt emitted; done when all of it is written. None when it is already."""
        if holding.events or holding.checkpoint:
            return self._send(holding)
        told = self._told.get(holding)
        return told.lasting if told is not None and told.is_sending else None

    def _track(self, child: ChildProcess) -> _Track:
        if child not in self._tracks:
            self._tracks[child] = _Track(ProcStat(child.pid))
        return self._tracks[child]

    def _look(self, child: ChildProcess) -> None:
        track = self._track(child)
        now_ns, numbers, sample = boot_ns(), track.stat.sample(), child.sample()
        running = self._holdings.of(child, sample.running)
        if numbers is not None and running is not None:
            running.rss_peak = max(running.rss_peak, numbers.rss_bytes)
        for seq, task in sample.tasks.items():
            holding = self._holdings.of(child, seq)
            if holding is not None and not holding.ending:
                self._look_at(holding, child, track, sample, task, numbers, now_ns)
        if now_ns - track.judged_ns >= JUDGED_OVER_NS:
            track.judged, track.judged_ns = numbers, now_ns

    def _look_at(
        self,
        holding: Holding,
        child: ChildProcess,
        track: _Track,
        sample: Sample,
        task: TaskSample,
        numbers: Numbers | None,
        now_ns: int,
    ) -> None:
        told = self._told.setdefault(holding, _Told(event_ns=now_ns))
        if told.is_sending:
            return  # what came after it would be written before it, and it then taken for a repeat
        shared = child.spec.kind == "async"
        report: dict[str, bytes | str] = {}
        if task.progress is not None and task.progress.at_ns != told.progress_at_ns:
            told.progress_at_ns = task.progress.at_ns
            holding.progress = task.progress
            report["progress"] = task.progress.json(now_ms=self._now_ms(), now_ns=now_ns)
            if task.progress.stage != told.stage or now_ns - told.event_ns >= EVENT_EVERY_NS:
                told.stage, told.event_ns = task.progress.stage, now_ns
                holding.events.append(("progress", bytes(report["progress"])))  # type: ignore[arg-type]
        verdict = self._judge(track, task, numbers, now_ns)
        if verdict is not None and verdict != told.health:
            told.health = verdict
            report["health"] = verdict
        if numbers is not None and now_ns - told.effort_ns >= EFFORT_EVERY_NS:
            told.effort_ns = now_ns
            based = track.base if not shared else None
            report["effort"] = holding.effort = _effort(
                holding,
                cpu_ms=numbers.cpu_ms - based.cpu_ms if based else None,
                wait_ms=numbers.wait_ms - based.wait_ms if based else None,
                gc_ms=sample.gc_ns // 1_000_000 if shared else None,
                rss=numbers.rss_bytes,
                shared=shared,
            )
        if report or holding.events or holding.checkpoint:
            self._send(holding, **report)

    def _judge(self, track: _Track, task: TaskSample, numbers: Numbers | None, now_ns: int) -> Health | None:
        paused = self._paused()
        interval_ms = (now_ns - track.judged_ns) / 1e6
        if not paused and interval_ms * 1e6 < JUDGED_OVER_NS and task.started_ns:
            return None
        before = track.judged if numbers is not None else None
        last_ns = max(task.started_ns, task.progress.at_ns if task.progress else 0)
        return health.judge(
            health.Evidence(
                interval_ms=interval_ms,
                cpu_ms=numbers.cpu_ms - before.cpu_ms if before and numbers else None,
                cpu_wait_ms=numbers.wait_ms - before.wait_ms if before and numbers else None,
                quiet_ms=(now_ns - last_ns) / 1e6,
                waiting=task.waiting is not None,
                paused=paused,
            ),
            stall_after_ms=self._stall_after_ms,
        )

    def _send(self, holding: Holding, **fields: bytes | str) -> asyncio.Future[str | None]:
        holding.reports += 1
        events, holding.events = holding.events, []
        checkpoint, holding.checkpoint = holding.checkpoint, b""
        item = Report(
            id=holding.id,
            epoch=holding.task.epoch,
            number=holding.reports,
            checkpoint=checkpoint,
            events=events,
            **fields,  # type: ignore[arg-type]
        )
        lasting = bool(events or checkpoint)
        answer = self._outbox.report(holding.task.partition, item, lasting=lasting)

        def heard(future: asyncio.Future[str | None]) -> None:
            if future.cancelled():
                return
            if (error := future.exception()) is not None:
                log.error("the store refused a report", task_id=holding.id, error=repr(error))
            elif future.result() in ("stale", "not_found"):
                self._stale(holding)

        answer.add_done_callback(heard)
        if lasting:
            self._told.setdefault(holding, _Told(event_ns=boot_ns())).lasting = answer
        return answer


def _effort(
    holding: Holding,
    *,
    cpu_ms: int | None,
    wait_ms: int | None,
    gc_ms: int | None,
    rss: int | None,
    shared: bool,
) -> bytes:
    task = holding.task
    return msgspec.json.encode(
        {
            "queue_wait_ms": task.claimed_ms - task.created_ms if task.attempt == 1 else None,
            "cpu_ms": cpu_ms,
            "cpu_wait_ms": wait_ms,
            "gc_pause_ms": gc_ms,
            "rss_bytes": rss,
            "rss_peak_bytes": holding.rss_peak or None,
            "shared": shared,
        }
    )

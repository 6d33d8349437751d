"""Telemetry: samples slots and /proc four times a second and writes what changed, in groups."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog

from taskgate.contract.models import Report
from taskgate.contract.states import Health
from workers import health
from workers.children import ChildProcess
from workers.holdings import Holding, Holdings
from workers.metrics import Metrics
from workers.outbox import Outbox
from workers.procstat import waited_ms
from workers.slot import Progress, Sample, TaskSample, boot_ns
from workers.tracks import Track

log = structlog.get_logger()

EVERY_S = 0.25
EFFORT_EVERY_NS = 1_000_000_000
EVENT_EVERY_NS = 10_000_000_000
LASTS_NS = 250_000_000
"""A stage of ours is told when it takes longer."""
EVENTS_A_REPORT, REPORT_BYTES = 128, 256 * 1024
NS_OF_A_MS = 1_000_000
UNKNOWN = "unknown"
"""As the record says it; readers see null."""

_ENDS_A_STALL = (Health.COMPUTING, Health.WAITING)


@dataclass(slots=True)
class _Told:
    """What was last written of one attempt."""

    progress_at_ns: int = 0
    stage: str = ""
    health: str | None = ""
    """None: the record may say something else. So too of `doing`."""
    effort_ns: int = 0
    event_ns: int = 0
    doing: str | None = ""
    """What the service does with it beside running its handler, or the handler says that it waits for."""
    steps: int = 0
    """Of an async task, when its health was judged last."""
    stalled: bool = False
    """A stall is told once, until it is seen to be over."""
    sent: asyncio.Future[str | None] | None = None
    """The last report: the next one waits for its answer, and then says it better."""
    lasting: asyncio.Future[str | None] | None = None
    """The last that carried what must not be lost."""


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
        stalled: Callable[[Holding], None] = lambda _: None,
        metrics: Metrics | None = None,
    ) -> None:
        self._holdings = holdings
        self._outbox = outbox
        self._children = children
        self._now_ms = now_ms
        self._paused = paused
        self._stall_after_ms = stall_after_s * 1000
        self._stale = stale
        self._stalled = stalled
        self._metrics = metrics or Metrics()
        self._tracks: dict[ChildProcess, Track] = {}
        self._told: dict[Holding, _Told] = {}

    async def run(self) -> None:
        """Sample until cancelled."""
        due = time.monotonic()
        while True:
            started = time.monotonic()
            late = started - due > EVERY_S
            for child in self._children():
                if late and child.load and child.exit is None:
                    child.hear()  # a supervisor that was frozen looks at its timers before its sockets
                if child.load and child.exit is None:
                    self._look(child)
            pause_s = max(0.01, EVERY_S - (time.monotonic() - started))
            due = time.monotonic() + pause_s
            await asyncio.sleep(pause_s)

    def starts(self, child: ChildProcess, *, alone: bool) -> None:
        """A child is given a task. Its waits count from here if it is `alone`, with no other of that child."""
        self._track(child).starts(alone=alone and not child.load)

    def forget(self, holding: Holding) -> None:
        self._told.pop(holding, None)

    def gone(self, child: ChildProcess) -> None:
        track = self._tracks.pop(child, None)
        if track is not None:
            self._metrics.measured(child.spec.pool, track)
            track.close()

    def ended(self, holding: Holding, *, run_cpu_ms: int | None = None, gc_ms: int | None = None) -> bytes:
        """Effort of an attempt that has ended, as JSON. What its child did not say of itself is measured here."""
        child = holding.child
        track = self._tracks.get(child) if child is not None else None
        if child is None or track is None:
            return _effort(holding, cpu_ms=run_cpu_ms, gc_ms=gc_ms)
        if child.spec.kind == "async":
            return _effort(holding, gc_ms=gc_ms, shared=True)
        now = track.stat.sample() if track.base is not None or run_cpu_ms is None else None
        if now is not None:
            holding.rss_peak = max(holding.rss_peak, now.rss_bytes)
        if run_cpu_ms is None and now is not None and (task := (sample := child.sample()).tasks.get(holding.seq)):
            run_cpu_ms = max(0, now.cpu_ms - task.cpu_ns // NS_OF_A_MS)
            gc_ms = (sample.gc_ns - task.gc_ns) // NS_OF_A_MS
        rss = now.rss_bytes or None if now is not None else None
        return _effort(holding, cpu_ms=run_cpu_ms, wait_ms=waited_ms(now, track.base), gc_ms=gc_ms, rss=rss)

    def last_progress(self, holding: Holding) -> Progress | None:
        """What a dead child's task had said last."""
        if holding.child is not None and (task := holding.child.sample().tasks.get(holding.seq)):
            holding.progress = task.progress or holding.progress
        return holding.progress

    def flush(self, holding: Holding) -> asyncio.Future[str | None] | None:
        """Send what an attempt emitted; done when all of it is written. None when it is already."""
        told = self._told.get(holding)
        lasting = told.lasting if told is not None else None
        if holding.emits is not None:
            holding.emits.tell_gap(holding.events)
        while holding.events or holding.checkpoint or _prints(holding, ends=True):
            lasting = self._send(holding, ends=True)
        return lasting if lasting is not None and not lasting.done() else None

    def _track(self, child: ChildProcess) -> Track:
        if child not in self._tracks:
            self._tracks[child] = Track(child.pid)
        return self._tracks[child]

    def _look(self, child: ChildProcess) -> None:
        track, sample = self._track(child), child.sample()
        track.look(sample, paused=self._paused())
        self._metrics.measured(child.spec.pool, track, sample)
        running = self._holdings.of(child, sample.running)
        if track.numbers is not None and running is not None:
            running.rss_peak = max(running.rss_peak, track.numbers.rss_bytes)
        for seq, task in sample.tasks.items():
            holding = self._holdings.of(child, seq)
            if holding is not None and not holding.ending:
                self._look_at(holding, child, track, sample, task)
        for seq in child.outstanding - sample.tasks.keys():
            holding = self._holdings.of(child, seq)
            if holding is not None and not holding.ending and track.now_ns - holding.handed_ns > LASTS_NS:
                self._begins_late(holding)
        track.close_window(sample)

    def _look_at(self, holding: Holding, child: ChildProcess, track: Track, sample: Sample, task: TaskSample) -> None:
        told = self._told.setdefault(holding, _Told(event_ns=track.now_ns))
        shared = child.spec.kind == "async"
        verdict = self._judge(holding, told, track, sample, task, shared=shared)
        if told.sent is not None and not told.sent.done():
            return
        if holding.emits is not None:
            holding.emits.tell_gap(holding.events)
        report: dict[str, Any] = {}
        if task.progress is not None and task.progress.at_ns != told.progress_at_ns:
            report["progress"] = self._progress(holding, told, task.progress, track.now_ns)
        if (doing := _doing(holding, task)) != told.doing:
            report["stage"] = _stage(holding, told, doing)
        if verdict == Health.STALLED and not told.stalled:
            self._stalled(holding)
        told.stalled = verdict == Health.STALLED or (told.stalled and verdict not in _ENDS_A_STALL)
        if verdict is not None and verdict != told.health:
            report["health"] = told.health = verdict
        if track.numbers is not None and track.now_ns - told.effort_ns >= EFFORT_EVERY_NS:
            told.effort_ns = track.now_ns
            report["effort"] = holding.effort = self._effort_so_far(holding, track, sample, task, shared=shared)
        if report or holding.events or holding.checkpoint or _prints(holding):
            self._send(holding, **report)

    def _begins_late(self, holding: Holding) -> None:
        """Its child has it, and its handler does not run yet."""
        told = self._told.setdefault(holding, _Told(event_ns=boot_ns()))
        if not told.doing and told.sent is None:
            self._send(holding, stage=_stage(holding, told, "starting in its child"))

    def _progress(self, holding: Holding, told: _Told, progress: Progress, now_ns: int) -> bytes:
        told.progress_at_ns, holding.progress = progress.at_ns, progress
        said = holding.shown(progress, now_ms=self._now_ms(), now_ns=now_ns)
        if progress.stage != told.stage or now_ns - told.event_ns >= EVENT_EVERY_NS:
            told.stage, told.event_ns = progress.stage, now_ns
            holding.events.append(("progress", said))
        return said

    def _effort_so_far(
        self, holding: Holding, track: Track, sample: Sample, task: TaskSample, *, shared: bool
    ) -> bytes:
        numbers = track.numbers
        assert numbers is not None
        return _effort(
            holding,
            cpu_ms=None if shared else max(0, numbers.cpu_ms - task.cpu_ns // NS_OF_A_MS),
            wait_ms=None if shared else waited_ms(numbers, track.base),
            gc_ms=(sample.gc_ns - task.gc_ns) // NS_OF_A_MS,
            rss=numbers.rss_bytes,
            shared=shared,
        )

    def _judge(
        self, holding: Holding, told: _Told, track: Track, sample: Sample, task: TaskSample, *, shared: bool
    ) -> str | None:
        """The verdict on the last window; while there is none, the one before."""
        evidence = track.evidence(sample, task, steps=told.steps, shared=shared, heard_ns=holding.spoke_ns)
        if evidence is None:
            return told.health
        told.steps = task.steps
        verdict = health.judge(evidence, stall_after_ms=self._stall_after_ms)
        if verdict is Health.STALLED and (work := track.helpers_work()) is not False:
            return Health.COMPUTING if work else told.health
        return UNKNOWN if verdict is None and told.health != "" else verdict or ""

    def _send(self, holding: Holding, *, ends: bool = False, **fields: Any) -> asyncio.Future[str | None]:
        holding.reports += 1
        output = holding.output
        logs, logs_lost = output.take(holding.task.attempt, whole=ends) if output is not None else ([], 0)
        events = _first_events(holding)
        checkpoint, holding.checkpoint = holding.checkpoint, b""
        item = Report(
            id=holding.id,
            epoch=holding.task.epoch,
            number=holding.reports,
            checkpoint=checkpoint,
            events=events,
            logs=logs,
            logs_lost=logs_lost,
            **fields,
        )
        lasting = bool(events or checkpoint or logs or logs_lost)
        answer = self._outbox.report(holding.task.partition, item, lasting=lasting)

        told = self._told.setdefault(holding, _Told(event_ns=boot_ns()))
        told.sent = answer
        if lasting:
            told.lasting = answer
        answer.add_done_callback(partial(self._heard, holding, told))
        return answer

    def _heard(self, holding: Holding, told: _Told, answer: asyncio.Future[str | None]) -> None:
        if answer.cancelled():
            return
        if (error := answer.exception()) is not None:
            log.error("the store refused a report", error=repr(error), **holding.facts())
        elif answer.result() is None:  # not written, as far as is known: so it is told again
            told.health, told.progress_at_ns, told.effort_ns, told.doing = None, 0, 0, None
        elif answer.result() in ("stale", "not_found"):
            self._stale(holding)


def _first_events(holding: Holding) -> list[tuple[str, bytes]]:
    """What of its events one report takes; the rest waits for the next."""
    size = count = 0
    for count, (_, data) in enumerate(holding.events):
        size += len(data)
        if count and (count == EVENTS_A_REPORT or size > REPORT_BYTES):
            break
    else:
        count = len(holding.events)
    taken, holding.events = holding.events[:count], holding.events[count:]
    if holding.emits is not None:
        own = [len(data) for name, data in holding.events if name == "custom"]
        holding.emits.written(len(own), sum(own))
    return taken


def _doing(holding: Holding, task: TaskSample) -> str:
    if holding.stop is not None:
        return "stopping"
    return f"waiting for {task.waiting}" if task.waiting else ""


def _stage(holding: Holding, told: _Told, doing: str) -> str:
    told.doing = doing
    return f"{holding.task.epoch}:{doing}"


def _prints(holding: Holding, *, ends: bool = False) -> bool:
    return holding.output is not None and holding.output.waits(whole=ends)


def _effort(
    holding: Holding,
    *,
    cpu_ms: int | None = None,
    wait_ms: int | None = None,
    gc_ms: int | None = None,
    rss: int | None = None,
    shared: bool = False,
) -> bytes:
    """As the record shows it. `shared`: memory and pauses are those of a process that runs other tasks too."""
    task = holding.task
    return msgspec.json.encode(
        {
            "queue_wait_ms": task.queue_wait_ms,
            "cpu_ms": cpu_ms,
            "cpu_wait_ms": wait_ms,
            "gc_pause_ms": gc_ms,
            "rss_bytes": rss,
            "rss_peak_bytes": holding.rss_peak or None,
            "shared": shared,
        }
    )

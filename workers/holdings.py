"""The attempts that this supervisor owns, from the claim to the answer to their end."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec

from taskgate.contract.models import Claimed, Held, TaskSpec
from taskgate.tracing import TraceContext
from workers.children import ChildProcess, StopReason
from workers.emits import Emits
from workers.output import Captured
from workers.slot import Progress


class Holding(msgspec.Struct, eq=False):
    """One claimed attempt. It is named in every beat until the store has answered its end."""

    task: Claimed
    child: ChildProcess | None = None
    seq: int = 0
    handed_ns: int = 0
    spoke_ns: int = 0
    """When it was last heard to emit, print, log or leave a checkpoint, by the boot clock; 0: never."""
    paused_ns: int = 0
    """`Lease.paused_ns` at the hand-over."""
    stop: StopReason | None = None
    killed_as: str | None = None
    """The error kind that a kill of ours gives it (`memory`, `timeout`)."""
    killed: bool = False
    """Its child was killed because of it."""
    steps: int = -1
    """Of its async child when it was first asked to stop; -1: it was not."""
    stop_paused_ns: int = 0
    """`Lease.paused_ns` when its grace began."""
    ending: bool = False
    """Its end is on the way to the store."""
    lost: bool = False
    """The store says that it is not ours any more: nothing of it is written."""
    stale: bool = False
    """It has been counted as another's."""
    progress: Progress | None = None
    base: Progress | None = None
    """The first that an attempt said which may have resumed: earlier ones have done so much."""
    rss_peak: int = 0
    """Bytes; 0 where it ran in no process of its own, or too short to be seen."""
    effort: bytes = b""
    checkpoint: bytes = b""
    output: Captured | None = None
    """What it has printed; None: nothing."""
    stack: str = ""
    """Where it was when its time was over, as its event loop told."""
    dump: asyncio.Future[str] | None = None
    """What faulthandler writes of its child, asked for at its timeout or before it is killed."""
    moment: tuple[int, int, int] = (0, 0, 0)
    """`ChildProcess.moment` then."""
    events: list[tuple[str, bytes]] = []
    emits: Emits | None = None
    """Of the handler's own among them; None before the first."""
    reports: int = 0
    trace: TraceContext | None = None
    """What its handler is part of; None: the same as its submission."""
    timers: list[asyncio.TimerHandle] = []

    @property
    def id(self) -> str:
        return self.task.id

    def facts(self) -> dict[str, Any]:
        """What every log line about an attempt carries."""
        return facts(self.task.spec, self.task.attempt, self.trace)

    def shown(self, progress: Progress, *, now_ms: int, now_ns: int) -> bytes:
        """Its progress as the record shows it; both times are the same moment."""
        if self.task.epoch > 1 and (self.base is None or not progress.current >= self.base.current):
            self.base = progress
        return progress.json(attempt=self.task.attempt, base=self.base, now_ms=now_ms, now_ns=now_ns)

    def leave_child(self) -> None:
        """Its end is known: no timer concerns it any more."""
        self.ending = True
        for timer in self.timers:
            timer.cancel()


class Holdings:
    """Every holding by task id, and by child and sequence number while a child has it."""

    def __init__(self) -> None:
        self._by_id: dict[str, Holding] = {}
        self._by_seq: dict[tuple[ChildProcess, int], Holding] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Holding]:
        return iter(list(self._by_id.values()))

    def add(self, holding: Holding) -> None:
        self._by_id[holding.id] = holding

    def get(self, task_id: str) -> Holding | None:
        return self._by_id.get(task_id)

    def assign(self, holding: Holding, child: ChildProcess, seq: int) -> None:
        holding.child, holding.seq = child, seq
        self._by_seq[child, seq] = holding

    def of(self, child: ChildProcess, seq: int) -> Holding | None:
        return self._by_seq.get((child, seq))

    def released_by_child(self, holding: Holding) -> None:
        if holding.child is not None:
            self._by_seq.pop((holding.child, holding.seq), None)

    def drop(self, holding: Holding) -> None:
        """Forget it: the store has answered."""
        self.released_by_child(holding)
        if self._by_id.get(holding.id) is holding:
            del self._by_id[holding.id]

    def names(self, partition: int) -> list[Held]:
        return [Held(h.id, h.task.epoch) for h in self._by_id.values() if h.task.partition == partition]


def facts(spec: TaskSpec, attempt: int, trace: TraceContext | None = None) -> dict[str, Any]:
    """Whose a line is. `trace`: the attempt's own span, where it has one."""
    known: dict[str, Any] = {
        "task_id": spec.id,
        "task_type": spec.type,
        "attempt": attempt,
        "tenant": spec.tenant,
        "request_id": spec.request_id,
    }
    if traceparent := spec.traceparent if trace is None else trace.parent:
        _, known["trace_id"], known["span_id"], _ = traceparent.split("-")
    return known

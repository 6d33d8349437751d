"""Handing claimed tasks to children, and taking back what no child has received."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

import structlog

from taskgate.contract.models import NEIGHBOUR_LIMIT, Claimed, TypeInfo
from workers.children import ChildProcess
from workers.claims import FRESH
from workers.ends import Ends
from workers.holdings import Holding, Holdings
from workers.memory import MemoryWatch
from workers.metrics import Metrics
from workers.pool import Pool
from workers.slot import boot_ns
from workers.stops import Stops
from workers.telemetry import Telemetry
from workers.traces import AttemptTraces
from workers.wire import HandlerInfo

log = structlog.get_logger()

BEHIND_NS = 50_000_000
"""A task that has run so long is none to wait behind."""
UNREAD_NS = 95_000_000
"""Unread for so long is taken back. With a look every 50 ms, nothing lies unread much longer than 100 ms."""
DEAF_NS = 5_000_000_000
"""A child is replaced that is idle and has read nothing for so long, or has read a task without beginning it."""


class HandOver:
    """Whoever receives the packet owns the task; until then it is the supervisor's to take back, uncounted."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        holdings: Holdings,
        ends: Ends,
        stops: Stops,
        telemetry: Telemetry,
        memory: MemoryWatch,
        *,
        types: Mapping[str, TypeInfo],
        handlers: Mapping[str, HandlerInfo],
        traces: AttemptTraces | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._pools = pools
        self._holdings = holdings
        self._ends = ends
        self._stops = stops
        self._telemetry = telemetry
        self._memory = memory
        self._types = types
        self._handlers = handlers
        self._traces = traces
        self._metrics = metrics or Metrics()
        self._watched: set[ChildProcess] = set()
        """Children in whose socket something may lie unread."""
        self._silent: WeakKeyDictionary[ChildProcess, tuple[int, int]] = WeakKeyDictionary()
        """Idle children that did not read: what they had received then, and since when."""
        self._loop = asyncio.get_running_loop()

    def take(self, tasks: Sequence[Claimed], deadline_ns: int) -> None:
        """Hand claimed tasks to children, to be started by then; what no child can take now goes back."""
        kinds = [self._kind(task) for task in tasks]
        places = {kind: self._places(kind, count) for kind, count in Counter(kinds).items()}
        if FRESH in places:  # they go first: no other task may get into their children before them
            tasks = sorted(tasks, key=lambda task: self._kind(task) != FRESH)
            kinds = [self._kind(task) for task in tasks]
        handed: list[tuple[Claimed, ChildProcess | None, int | None]] = []
        try:
            # Nothing else in between: a child that finds no next task in its socket sleeps, and waking it is dear.
            for task, kind in zip(tasks, kinds, strict=True):
                child = self._place(task, places[kind])
                handed.append((task, child, None if child is None else self._hand_over(task, child, deadline_ns)))
        finally:
            self._note(handed)

    def _note(self, handed: Sequence[tuple[Claimed, ChildProcess | None, int | None]]) -> None:
        """Hold what was handed over, in the same turn of the loop; send back what was not."""
        handed_ns = boot_ns()
        given: list[Holding] = []
        for task, child, seq in handed:
            holding = Holding(task)
            self._holdings.add(holding)
            if self._traces is not None:
                holding.trace = self._traces.of(task)
            if child is None or seq is None:
                self._ends.hand_back(holding, reason="taken_back", ran=False)
                continue
            holding.handed_ns = handed_ns
            self._holdings.assign(holding, child, seq)
            self._memory.watch(holding, child)
            self._watch(child)
            given.append(holding)
            self._metrics.starts(task)
        self._stops.arm(*given)

    def take_back(self, child: ChildProcess) -> None:
        """What it has not received it will never see."""
        for seq in child.take_back():
            if (holding := self._holdings.of(child, seq)) is not None:
                self._ends.hand_back(holding, reason="taken_back", ran=False)
        self._pools[child.spec.pool].let_go(child)

    def _kind(self, task: Claimed) -> str | None:
        """`sync`, `async`, `fresh` or `alone`; None for a type that no child has told of."""
        info, handler = self._types.get(task.spec.type), self._handlers.get(task.spec.type)
        if info is None or handler is None:
            return None
        if info.kind == "async" and task.neighbours >= NEIGHBOUR_LIMIT:
            return "alone"
        return FRESH if handler.fresh_process else info.kind

    def _places(self, kind: str | None, count: int) -> Iterator[ChildProcess]:
        if kind is None:
            return iter(())
        return self._pools["sync" if kind == FRESH else kind].places(count, virgin=kind == FRESH)

    def _place(self, task: Claimed, places: Iterator[ChildProcess]) -> ChildProcess | None:
        """The next place; a child that earlier tasks have left too large for the task's limit is recycled instead."""
        for child in places:
            pool = self._pools[child.spec.pool]
            if not pool.has_worked(child) or self._memory.fits(task.spec.type, child):
                return child
            log.info("child is recycled: too large for the next task", pid=child.pid, task_type=task.spec.type)
            pool.retire(child)
        return None

    def _hand_over(self, task: Claimed, child: ChildProcess, deadline_ns: int) -> int | None:
        """Its sequence in the child, None where that has no room."""
        pool = self._pools[child.spec.pool]
        self._telemetry.starts(child, alone=pool.depth == 1)
        last = self._handlers[task.spec.type].fresh_process
        trace = None if self._traces is None else self._traces.begin(task, child.pid)
        seq = child.hand_over(task, deadline_ns=deadline_ns, last=last, trace=trace)
        if seq is not None:
            pool.used(child)
        elif self._traces is not None:
            self._traces.drop(task)
        return seq

    def _watch(self, child: ChildProcess, *, stuck_ns: int = 0) -> None:
        if child not in self._watched:
            self._watched.add(child)
            self._loop.call_later(BEHIND_NS / 1e9, self._look_for_unread, child, stuck_ns)

    def _look_for_unread(self, child: ChildProcess, stuck_ns: int) -> None:
        """Nothing waits in a child's socket behind a task that has run for 50 ms, or for 100 ms at all."""
        self._watched.discard(child)
        received = child.received() if child.exit is None else 0
        unread = [seq for seq in child.outstanding if seq > received]
        holding = self._holdings.of(child, min(unread)) if unread else None
        if child.exit is not None or holding is None:
            return
        sample, now_ns = child.sample(), boot_ns()
        if (sample.running and now_ns - sample.started_ns >= BEHIND_NS) or now_ns - holding.handed_ns >= UNREAD_NS:
            self._pools[child.spec.pool].slow(child)
            self.take_back(child)
            if not child.load:
                self._was_silent(child, now_ns)
            elif holding.seq in child.outstanding and holding.seq > child.received():
                self._is_stuck(child, holding, stuck_ns)
        else:
            self._watch(child)

    def _was_silent(self, child: ChildProcess, now_ns: int) -> None:
        """It had nothing to do and did not read: what an earlier task has left keeps it from that, or a signal."""
        pool, received = self._pools[child.spec.pool], child.received()
        before, since_ns = self._silent.get(child, (-1, 0))
        if pool.paused:
            self._silent.pop(child, None)
        elif before != received:
            self._silent[child] = received, now_ns
        elif now_ns - since_ns > DEAF_NS:
            log.warning("child reads nothing any more; it is replaced", pid=child.pid)
            pool.retire(child)

    def _is_stuck(self, child: ChildProcess, holding: Holding, stuck_ns: int) -> None:
        """A packet has left the socket, but its task has not begun: a thread that keeps the GIL prevents it.

        No timeout would ever come. It is counted in looks, so that a supervisor that froze does not take it for theirs.
        """
        if not self._pools[child.spec.pool].paused:
            stuck_ns += BEHIND_NS
        if stuck_ns < DEAF_NS:
            self._watch(child, stuck_ns=stuck_ns)
            return
        log.warning("child does not begin what it has read, killing", **self._ends.facts(holding))
        self._metrics.killed(child, "blocked")
        child.blocked = child.load > 1  # by one of its tasks, and nobody knows which
        child.kill()

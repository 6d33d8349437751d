"""The pool: a fixed number of children of each kind, one spare, every death replaced."""

import asyncio
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator

import structlog

from taskgate.footprint import PIPELINE
from workers.background import Background
from workers.children import ChildProcess, ChildSpec, Exit
from workers.guard_client import GuardClient
from workers.wire import Done, Message, Ready, Refused, StartFailed, Unclean

log = structlog.get_logger()

START_PAUSE_S = (0.1, 5.0)
"""Before another start when children cannot be started, or die before they are ready: first and longest."""
START_S = 60.0
"""A child that has not loaded its handlers and run what they do at the start of a child by then is killed."""
EXIT_S = 5.0
"""A child that was asked to exit has so long for what handlers registered with `atexit`; then it is killed."""
SLOW_S = 1.0
"""For so long at least an async child that has left its tasks unread has no room beside those that it runs."""
CLAIM = 64
"""So many tasks are worth a claim of their own."""
PIPELINE_NS = 4_000_000
"""Tasks run shorter than this on average may be handed over ahead, as many as fit into it, at most PIPELINE."""


class Pool:
    """Children of one kind. At most `size` are busy; one more is kept warm, so that a death costs no start.

    The guard knows a child before it is given anything, and a zombie is reaped only when the guard has let go of it.
    A child that is due (`max_tasks`, `max_rss_bytes`) works until another stands in for it: recycling delays no task.
    """

    def __init__(
        self,
        spec: ChildSpec,
        size: int,
        *,
        guard: GuardClient,
        max_tasks: int | None = None,
        max_rss_bytes: int | None = None,
        on_message: Callable[[ChildProcess, Message], None],
        on_exit: Callable[[ChildProcess, Exit], None],
        on_change: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.size = size
        self._guard = guard
        self._max_tasks = max_tasks or math.inf
        self._max_rss_bytes = max_rss_bytes
        self._on_message = on_message
        self._on_exit = on_exit
        self._on_change = on_change
        self._children: list[ChildProcess] = []
        self._guarded: set[ChildProcess] = set()
        self._retiring: set[ChildProcess] = set()
        self._used: set[ChildProcess] = set()
        self._slow: set[ChildProcess] = set()
        self._due: set[ChildProcess] = set()
        self._leaving: set[ChildProcess] = set()
        self._background = Background()
        self._loop = asyncio.get_running_loop()
        self._buried = asyncio.Event()
        self._starting = 0
        self._pause_s = 0.0
        self._stopping = False
        self.mean_run_ns = 10**9
        self.fresh_waits = False
        """Tasks that need a child which has run nothing wait for one."""
        self.left_behind: Counter[str] = Counter()
        """By task type: how often something of it was found that no task may leave to the next."""

    @property
    def children(self) -> list[ChildProcess]:
        return list(self._children)

    @property
    def depth(self) -> int:
        """How many tasks a child may hold: 1, or more where measured run times are tiny.

        Children with pipelines are busy all the time: while a fresh one waits for the turn of another, there are none.
        """
        if self.spec.kind == "async":
            return self.spec.slots
        if self.fresh_waits and any(child not in self._used for child in self._children if self._can_work(child)):
            return 1
        return max(1, min(PIPELINE, PIPELINE_NS // max(1, self.mean_run_ns)))

    @property
    def paused(self) -> bool:
        """The guard has stopped the children."""
        return self._guard.paused

    def ran(self, child: ChildProcess, run_ns: int) -> None:
        """Learn from a finished task; a long one counts at once, short ones slowly."""
        self._slow.discard(child)
        if self._is_due(child):
            self._due.add(child)
            self.fill()
            self._replace_due()
        self.mean_run_ns = max(run_ns, (7 * self.mean_run_ns + run_ns) // 8)

    def slow(self, child: ChildProcess) -> None:
        """What it runs is none to stand behind. Those of an async child may take hours: there its loop must turn."""
        if self.spec.kind == "async" and child not in self._slow:
            self._loop.call_later(SLOW_S, self._try_again, child, child.steps())
        self._slow.add(child)

    def _try_again(self, child: ChildProcess, steps: int) -> None:
        if child.exit is None and child.noted() and child.steps() == steps:  # one of its tasks holds the loop
            self._loop.call_later(SLOW_S, self._try_again, child, steps)
            return
        self._slow.discard(child)
        self._on_change()

    def free(self) -> int:
        """How many tasks can be handed over now; pipelines are filled again when half of them is empty, or a good
        claim's worth: what they still hold is to last until its answer comes.
        """
        depth, offered = self.depth, self._offered()
        depths = [self._depth(child, depth) for child in offered]
        room = sum(max(0, each - child.load) for each, child in zip(depths, offered, strict=True))
        # Of what they may hold now: idle ones that may hold one task each would else wait for ever for a half of more.
        if self.spec.kind == "sync" and depth > 1 and room < min(CLAIM, sum(depths) / 2):
            return 0
        return room

    def virgins(self) -> int:
        """How many tasks can go to children that have run nothing."""
        return len(self._unused())

    def _unused(self) -> list[ChildProcess]:
        """Children that have run nothing, the spare too: it may take the place of one that is idle."""
        busy = sum(child.load > 0 for child in self._children)
        unused = [child for child in self._children if self._can_work(child) and child not in self._used]
        return unused[: max(0, self.size - busy)]

    def places(self, count: int, *, virgin: bool = False) -> Iterator[ChildProcess]:
        """Children for up to `count` tasks, the least loaded first; of idle ones, those that have worked before."""
        depth = self.depth
        if virgin:
            free = [(0, i, 1, child) for i, child in enumerate(self._unused())]
        else:
            free = [(child.load, i, self._depth(child, depth), child) for i, child in enumerate(self._offered())]
        heapq.heapify(free)
        while free and count:
            load, i, most, child = heapq.heappop(free)
            if load < most:
                count -= 1
                yield child
                heapq.heappush(free, (load + 1, i, most, child))

    def _offered(self) -> list[ChildProcess]:
        """The children that count towards `size`: busy ones, then idle ones that have worked before, then the rest."""
        busy: list[ChildProcess] = []
        idle: list[ChildProcess] = []
        unused: list[ChildProcess] = []
        retiring = 0
        for child in self._children:
            if child in self._retiring:
                # An async one may take its longest task's time to end; its slots must not be missed for so long.
                retiring += child.load > 0 and self.spec.kind == "sync"
            elif self._can_work(child):
                (busy if child.load else idle if child in self._used else unused).append(child)
        return (busy + idle + unused)[: max(0, self.size - retiring)]

    def _depth(self, child: ChildProcess, depth: int) -> int:
        if child.last_given:
            return 0
        return 1 if child in self._slow else depth

    def used(self, child: ChildProcess) -> None:
        self._used.add(child)

    def has_worked(self, child: ChildProcess) -> bool:
        return child in self._used

    def resize(self, size: int) -> None:
        """Have so many children from now on; what a superfluous one holds it may finish."""
        self.size = size
        for child in self._children[size:]:
            self.retire(child)
        self.fill()

    def fill(self) -> None:
        """Start what is missing, the spare included."""
        spare = self.spec.kind == "sync" or bool(self._due - self._retiring)
        wanted = 0 if self._stopping or not self.size else self.size + spare
        have = len(self._children) - len(self._retiring) + self._starting
        for _ in range(wanted - have):
            self._starting += 1
            self._background.spawn(self._bring_up())

    def retire(self, child: ChildProcess) -> None:
        """Give it nothing more; it exits when it has done what it holds, and is replaced now."""
        if child in self._retiring or child.exit is not None:
            return
        self._retiring.add(child)
        self.fill()
        self.let_go(child)

    def _is_due(self, child: ChildProcess) -> bool:
        if child.handed >= self._max_tasks:
            return True
        return self._max_rss_bytes is not None and child.memory.resident() > self._max_rss_bytes

    def _replace_due(self) -> None:
        """As many as there are children that have run nothing yet; async ones, which take long to end, one by one."""
        if self.spec.kind == "async" and self._retiring:
            return
        unused = sum(child not in self._used for child in self._children if self._can_work(child))
        for child in list(self._due - self._retiring)[:unused]:
            log.info("child is recycled", pid=child.pid, tasks=child.handed, rss_bytes=child.memory.resident())
            self.retire(child)

    def _can_work(self, child: ChildProcess) -> bool:
        return child.ready and child.exit is None and child in self._guarded and child not in self._retiring

    def let_go(self, child: ChildProcess) -> None:
        """Ask a retiring child that holds nothing to exit, and kill it if it does not."""
        if child not in self._retiring or child in self._leaving or child.load or child.exit is not None:
            return
        self._leaving.add(child)
        if child.finish():
            self._loop.call_later(EXIT_S, child.kill)
        else:
            child.kill()

    async def stop(self) -> None:
        """Kill what is left and wait until every child is reaped."""
        self._stopping = True
        for child in self._children:
            child.kill()
        while self._children:
            self._buried.clear()
            await self._buried.wait()

    async def _bring_up(self) -> None:
        try:
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            if self._stopping:
                return
            child = ChildProcess.start(self.spec, on_message=self._message, on_exit=self._exited)
        except OSError as error:
            log.error("a child cannot be started", kind=self.spec.kind, error=str(error))
            self._back_off()
            self._loop.call_soon(self.fill)
            return
        finally:
            self._starting -= 1
        self._children.append(child)
        self._loop.call_later(START_S, self._expect_ready, child)
        await self._guard.add(child.pid)
        self._guarded.add(child)
        self._replace_due()
        self._on_change()

    def _expect_ready(self, child: ChildProcess) -> None:
        if not child.ready and child.exit is None:
            log.error("child is not ready in time, killing", pid=child.pid, kind=self.spec.kind, seconds=START_S)
            child.kill()

    def _back_off(self) -> None:
        first, longest = START_PAUSE_S
        self._pause_s = min(longest, max(first, self._pause_s * 2))

    def _message(self, child: ChildProcess, message: Message) -> None:
        match message:
            case Ready():
                self._pause_s = 0.0
                self._replace_due()
            case StartFailed(error):
                log.error("child could not start", pid=child.pid, kind=self.spec.kind, error=error)
            case Done() | Refused() if child.last_given:
                self.retire(child)  # to exit is its own affair; it may never succeed
            case Unclean(kept, undone, task_id, task_type):
                log.warning(
                    "a task left something behind; the child is recycled"
                    if kept
                    else "a task left changes behind; they were taken back",
                    pid=child.pid,
                    task_id=task_id,
                    task_type=task_type,
                    kept=kept,
                    undone=undone,
                )
                self.left_behind[task_type] += 1
                if kept:
                    self.retire(child)
        self._on_message(child, message)
        self.let_go(child)

    def _exited(self, child: ChildProcess, how: Exit) -> None:
        if not child.ready:
            self._back_off()
        self._on_exit(child, how)
        self._background.spawn(self._bury(child))

    async def _bury(self, child: ChildProcess) -> None:
        await self._guard.remove(child.pid)
        child.reap()
        child.close()
        self._children.remove(child)
        for each in (self._guarded, self._retiring, self._used, self._slow, self._due, self._leaving):
            each.discard(child)
        self._buried.set()
        self.fill()
        self._replace_due()
        self._on_change()

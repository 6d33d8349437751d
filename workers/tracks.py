"""What is measured of one child while it works, window by window, and the evidence on each of its tasks."""

from workers.health import Evidence
from workers.procstat import Numbers, ProcStat, waited_ms
from workers.slot import Sample, TaskSample, boot_ns

WINDOW_NS = 1_000_000_000
"""Health is judged over that long: shorter intervals mistake one tick of the CPU clock for a trend."""
SLACK_NS = WINDOW_NS // 10
"""A task that begins so early in a window has run through it."""
UNWATCHED_NS = 5_000_000_000
"""Of a time so long without a look nothing is known: the supervisor was frozen, or the machine asleep."""


class Track:
    """Looks at one child from outside. What it says of a window is true of the whole of it, or it says nothing."""

    def __init__(self, pid: int) -> None:
        self.stat = ProcStat(pid)
        self.base: Numbers | None = None
        """At the hand-over of the task now running; None where that was not measured."""
        self.numbers: Numbers | None = None
        self.now_ns = 0
        self._paused = False
        self._before: Numbers | None = None
        self._steps = 0
        self._since_ns = 0
        self._looked_ns = 0
        self._quiet_from_ns = 0
        """Whoever says nothing is not silent from before that: then nobody listened, or he could not speak."""
        self.counted = (0, 0, 0)
        """CPU time (ms), waits for a CPU (ms) and collector's pauses (ns) of the child that the metrics hold."""
        self._helpers = (0, 0)
        """CPU time of what it has started, and when that was asked for."""

    def starts(self, *, alone: bool) -> None:
        """The child is given a task; `alone`: it has no other."""
        self.base = self.stat.sample() if alone else None
        if alone:
            self._looked_ns = boot_ns()
            self._begin_window(self._looked_ns, self.base, 0)

    def look(self, sample: Sample, *, paused: bool) -> None:
        """Begin a look. Verdicts on its tasks follow, then `close_window`."""
        self.now_ns, self.numbers, self._paused = boot_ns(), self.stat.sample(), paused
        if paused or self.now_ns - self._looked_ns > UNWATCHED_NS:
            self._begin_window(self.now_ns, self.numbers, sample.steps)
            self._quiet_from_ns = self.now_ns
        self._looked_ns = self.now_ns

    def close_window(self, sample: Sample) -> None:
        """End a look."""
        if self.now_ns - self._since_ns >= WINDOW_NS:
            self._begin_window(self.now_ns, self.numbers, sample.steps)

    def evidence(
        self, sample: Sample, task: TaskSample, *, steps: int, shared: bool, heard_ns: int = 0
    ) -> Evidence | None:
        """None while no window is over that the task has run through.

        `steps`: the task's, when last asked for. `heard_ns`: when it last said anything but progress.
        """
        whole = self.now_ns - self._since_ns >= WINDOW_NS and task.started_ns - self._since_ns <= SLACK_NS
        if not whole and not self._paused:
            return None
        cpu_ms, taken = self._cpu_ms(), False
        if shared and len(sample.tasks) > 1:
            works = task.steps != steps or task.calls or sample.noted == task.seq
            taken = not works and bool(sample.noted) and sample.steps == self._steps
            cpu_ms = cpu_ms if works or cpu_ms is None else 0
        progress_ns = task.progress.at_ns if task.progress else 0
        spoke_ns = max(task.started_ns, progress_ns, heard_ns, self._quiet_from_ns)
        return Evidence(
            interval_ms=(self.now_ns - self._since_ns) / 1e6,
            cpu_ms=cpu_ms,
            cpu_wait_ms=waited_ms(self.numbers, self._before),
            quiet_ms=(self.now_ns - spoke_ns) / 1e6,
            waiting=task.waiting is not None,
            paused=self._paused,
            runnable=self.numbers is not None and self.numbers.runnable,
            loop_taken=taken,
        )

    def helpers_work(self) -> bool | None:
        """Whether processes that it has started have used CPU since this was last asked; None: not known yet.

        It takes a look at each of them: ask only about a child that does nothing itself.
        """
        (before_ms, asked_ns), self._helpers = self._helpers, (self.stat.started_cpu_ms(), self.now_ns)
        if not self._helpers[0]:
            return False
        return self._helpers[0] != before_ms if self.now_ns - asked_ns < 2 * WINDOW_NS else None

    def close(self) -> None:
        self.stat.close()

    def _begin_window(self, now_ns: int, numbers: Numbers | None, steps: int) -> None:
        self._before, self._since_ns, self._steps = numbers, now_ns, steps

    def _cpu_ms(self) -> int | None:
        return self.numbers.cpu_ms - self._before.cpu_ms if self.numbers and self._before else None

"""What a supervisor counts, of itself and of its children; told on its own port, so that Redis pays nothing for it."""

from collections.abc import Container
from typing import TYPE_CHECKING
from weakref import WeakSet

from taskgate import metrics
from taskgate.contract.states import FINAL, ErrorKind
from taskgate.metrics import LATENESS_BUCKETS, OTHER, RUN_BUCKETS, Counter, Family, Gauge, Histogram
from taskgate.vitals import Vitals
from workers.slot import Sample
from workers.tracks import Track

if TYPE_CHECKING:
    from taskgate.contract.models import Claimed, TaskSpec
    from workers.children import ChildProcess
    from workers.runner import Runner

_KILLS = {"blocks its event loop": "blocked", "what it started runs on": "left_running"}
"""Reasons as a task's events say them, in one word; others are one."""

_KINDS = ("timeout", "cancel", "drain", "memory", "blocked", "left_running", "lost", "lease", "kernel_memory")
_DEATHS = ("exit", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTERM")
_REASONS = ("taken_back", "drain", "neighbour", "suspect", "schema", "deadline", "unknown")


class Metrics:
    """Queues and types are those that this supervisor serves, which its operator has named."""

    def __init__(self) -> None:
        self.vitals = Vitals("supervisor")
        self.finished = Counter("taskgate_tasks_finished_total", "Tasks that ended.", "queue", "type", "status")
        self.retries = Counter(
            "taskgate_task_retries_total", "Attempts after which there is another one.", "queue", "type"
        )
        self.failures = Counter(
            "taskgate_attempt_errors_total", "Attempts that did not succeed, by error.kind.", "kind"
        ).known(*ErrorKind)
        self.waits = Histogram(
            "taskgate_task_queue_wait_seconds",
            "From when a task could first be claimed to its claim.",
            "queue",
            "type",
            buckets=RUN_BUCKETS,
        )
        self.runs = Histogram(
            "taskgate_task_run_seconds",
            "How long attempts ran whose child told of their end, by what became of the task.",
            "queue",
            "type",
            "status",
            buckets=RUN_BUCKETS,
        )
        self.handed_back = Counter("taskgate_tasks_handed_back_total", "Claims given back uncounted.", "reason").known(
            *_REASONS
        )
        self.kills = Counter("taskgate_kills_total", "Children killed because of a task, by kind.", "kind").known(
            *_KINDS
        )
        self._killed: WeakSet[ChildProcess] = WeakSet()
        self.deaths = Counter("taskgate_child_deaths_total", "Children that died while they held tasks.", "how").known(
            *_DEATHS
        )
        self.late_beats = Histogram(
            "taskgate_beat_lateness_seconds", "How late beats were sent.", buckets=LATENESS_BUCKETS
        )
        self.beats = Histogram(
            "taskgate_beat_seconds", "From a beat to its answer; none for those not answered.", buckets=LATENESS_BUCKETS
        )
        self._stale = Counter("taskgate_stale_writes_total", "Attempts that turned out to be another's.")
        self._left = Counter("taskgate_tasks_left_something_total", "Tasks that left something behind.", "type")
        self._slots = Gauge("taskgate_slots", "Tasks that run at a time, at most.", "pool")
        self._busy = Gauge("taskgate_slots_busy", "Slots with a task.", "pool")
        self._children = Gauge("taskgate_children", "Children, by state.", "pool", "state")
        self._held = Gauge("taskgate_tasks_held", "Attempts that this supervisor owns.")
        self._consuming = Gauge("taskgate_consuming", "Whether it would claim a task now if it had a slot free.")
        self._guard = Gauge("taskgate_guard_up", "Whether its guard is alive and knows all children.")
        self._lease = Gauge("taskgate_lease_seconds", "What is left of its lease.")
        self._age = Gauge("taskgate_beat_age_seconds", "Since its last answered beat was sent.")
        self._build = metrics.build_info()

    def starts(self, task: "Claimed") -> None:
        """It was handed to a child."""
        if (task.spec.queue, task.spec.type, "failed") not in self.finished.values:
            self.finished.add(task.spec.queue, task.spec.type, "failed", by=0)  # what has no series has no rate
        if (wait_ms := task.queue_wait_ms) is not None:
            self.waits.observe(max(0, wait_ms) / 1000, task.spec.queue, task.spec.type)

    def ended(self, spec: "TaskSpec", status: str, *, run_ms: int | None, error_kind: str | None) -> None:
        """An attempt, as the store has it."""
        queue, task_type = spec.queue, spec.type
        if status in FINAL:
            self.finished.add(queue, task_type, status)
        elif status in ("retrying", "queued"):
            self.retries.add(queue, task_type)
        if run_ms is not None:
            self.runs.observe(run_ms / 1000, queue, task_type, status)
        if error_kind is not None:
            self.failures.add(error_kind)

    def unserved(self, queue: str, task_type: str, *, failed: int, served: Container[str]) -> None:
        """Tasks that no attempt was made of. `served`: queues that this supervisor serves; others a client may name."""
        self.finished.add(queue if queue in served else OTHER, task_type, "failed", by=failed)

    def killed(self, child: "ChildProcess", reason: str) -> None:
        """Once for each child, however many of its tasks end with it: why it was killed first."""
        if child not in self._killed:
            self._killed.add(child)
            self.kills.add(_KILLS.get(reason, reason))

    def measured(self, pool: str, track: Track, sample: Sample | None = None) -> None:
        """What a child has used since the last time. `sample` None: it is dead."""
        numbers = track.stat.sample() if sample is None else track.numbers
        if numbers is None:
            return
        cpu_ms, wait_ms, gc_ns = track.counted
        now = numbers.cpu_ms, numbers.wait_ms or wait_ms, gc_ns if sample is None else sample.gc_ns
        track.counted = now
        self.vitals.cpu.add(pool, by=max(0, now[0] - cpu_ms) / 1e3)
        self.vitals.waited.add(pool, by=max(0, now[1] - wait_ms) / 1e3)
        self.vitals.paused.add(pool, by=max(0, now[2] - gc_ns) / 1e9)

    def text(self, runner: "Runner", *, consuming: bool, guard: bool, lease_s: float, beat_age_s: float) -> bytes:
        """In Prometheus' format."""
        self.vitals.look()
        self._stale.values[()] = runner.ends.stale_writes
        self._consuming.set(to=consuming)
        self._guard.set(to=guard)
        self._lease.set(to=max(0.0, lease_s))
        self._age.set(to=beat_age_s)
        self._held.set(to=len(runner.holdings))
        self._look_at_children(runner)
        return metrics.text(self.families())

    def _look_at_children(self, runner: "Runner") -> None:
        left: dict[str, int] = {}
        for name, pool in runner.pools.items():
            is_async, children = pool.spec.kind == "async", pool.children
            self._slots.set(name, to=pool.size * (pool.spec.slots if is_async else 1))
            self._busy.set(name, to=sum(child.load if is_async else child.load > 0 for child in children))
            self.vitals.memory.set(name, to=sum(child.memory.resident() for child in children))
            states = ["starting" if not child.ready else "busy" if child.load else "idle" for child in children]
            for state in ("starting", "busy", "idle"):
                self._children.set(name, state, to=states.count(state))
            for task_type, count in pool.left_behind.items():
                left[task_type] = left.get(task_type, 0) + count
        self._left.values = {(task_type,): count for task_type, count in left.items()}

    def families(self) -> list[Family]:
        """All there are."""
        own = [each for each in vars(self).values() if isinstance(each, Family)]
        return [*own, *self.vitals.families]

"""`GET /metrics`: what this process has counted, what its siblings have, and the queues as Redis has them."""

import asyncio
import platform
from bisect import bisect_left
from http import HTTPStatus
from typing import TYPE_CHECKING

from app.observers import Observed
from app.siblings import Siblings
from taskgate import metrics
from taskgate.contract import errors
from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.metrics import OTHER, REQUEST_BUCKETS, Counter, Family, Gauge, Histogram, version
from taskgate.vitals import Vitals

if TYPE_CHECKING:
    from app.gateway import Gateway

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STREAMS = ("/tasks/{task_id}/events", "/events")
_NOWHERE = (0.0,) * (len(REQUEST_BUCKETS) + 2)
"""How long a client follows a stream is its own affair."""

_UNANSWERED = "499"
"""As nginx has it: nobody was there to be answered any more."""

_DEPTHS = ("queued", "scheduled", "retrying", "running", "dead")


class Metrics:
    """The counters of one gateway process. A queue has a label of its own if an operator has named it, not a client."""

    def __init__(self, queues: set[str], siblings: Siblings | None = None) -> None:
        """`queues`: those that the policy names."""
        self.vitals = Vitals("gateway")
        self.siblings = siblings
        self._queues = queues
        self.submitted = Counter("taskgate_tasks_submitted_total", "Tasks accepted: on disk.", "queue", "type")
        self.replayed = Counter(
            "taskgate_submissions_replayed_total",
            "Submissions answered with an earlier task, by what they had in common.",
            "by",
        )
        self.rejected = Counter(
            "taskgate_tasks_rejected_total",
            "Submissions refused, by the limit that ran out, or by problem.",
            "reason",
        )
        self.refused = Counter("taskgate_requests_refused_total", "Requests refused, by problem.", "problem")
        self._http = Histogram(
            "http_server_request_duration_seconds",
            "From a request's head to its answer; of streams only those that were refused.",
            "method",
            "route",
            "status",
            buckets=REQUEST_BUCKETS,
        )
        self._cells: dict[tuple[str, str, int], list[float]] = {}
        """Of it, by what requests say."""
        self.streams = Gauge("taskgate_sse_streams", "Open event streams.")
        self.events = Counter("taskgate_sse_events_total", "Events sent on streams, by name.", "event")
        self._cache = Counter(
            "taskgate_status_cache_requests_total", "Reads of a task's status, answered from memory or not.", "result"
        )
        self._faults = Counter("taskgate_redis_errors_total", "Calls of Redis that failed, by what is known.", "error")
        self._shared: list[Family] = [
            self.submitted,
            self.replayed,
            self.rejected,
            self.refused,
            self._http,
            self.streams,
            self.events,
            self._cache,
            self._faults,
            *self.vitals.families,
        ]
        self._build = Gauge("taskgate_build_info", "1; the labels say what runs.", "version", "python")
        self._build.set(version(), platform.python_version(), to=1)
        self._redis_up = Gauge("taskgate_redis_up", "Whether Redis answered this scrape.")
        self._depth = Gauge("taskgate_queue_depth", "Tasks in a queue, by state; dead: dead letters.", "queue", "state")
        self._age = Gauge("taskgate_queue_oldest_age_seconds", "Age of the oldest queued task.", "queue")
        self._bytes = Gauge("taskgate_queue_bytes", "What waits in a queue, as its limit counts it.", "queue")
        self._limit = Gauge("taskgate_queue_limit_tasks", "How many may wait in a queue.", "queue")
        self._drain = Gauge("taskgate_queue_drain_per_second", "Tasks that leave a queue, as measured.", "queue")
        self._workers = Gauge("taskgate_workers", "Supervisors that have beaten within their lease, by state.", "state")
        self._of_redis: list[Family] = [
            self._build,
            self._redis_up,
            self._depth,
            self._age,
            self._bytes,
            self._limit,
            self._drain,
            self._workers,
        ]

    async def run(self, gateway: "Gateway") -> None:
        """Until cancelled."""
        tell = [] if self.siblings is None else [self.siblings.run(self._shared, lambda: self.collect(gateway))]
        await asyncio.gather(self.vitals.run(), *tell)

    def count_request(self, request: Observed, seconds: float) -> None:
        """An Observer."""
        counts = self._cells.get((request.method, request.route, request.status)) or self._cell(request)
        counts[bisect_left(REQUEST_BUCKETS, seconds)] += 1
        counts[-1] += seconds

    def _cell(self, request: Observed) -> list[float]:
        method, route, status = request.method, request.route, request.status
        if route in _STREAMS and status == HTTPStatus.OK:
            return list(_NOWHERE)
        method = method if method in _METHODS else OTHER
        cell = self._http.cell(method, route or OTHER, str(status) if status else _UNANSWERED)
        if method != OTHER:
            self._cells[method, route, status] = cell
        return cell

    def accepted(self, queue: str, task_type: str, *, own: str) -> None:
        """`own`: the queue of its type, which somebody has chosen who operates the service."""
        if queue not in self._queues:
            if queue == own:
                self._queues.add(queue)
            else:
                queue = OTHER
        self.submitted.add(queue, task_type)

    async def text(self, gateway: "Gateway") -> bytes:
        """In Prometheus' format."""
        await self._look_at_redis(gateway)
        self.collect(gateway)
        shared = self._shared if self.siblings is None else self.siblings.added_up(self._shared)
        return metrics.text([*shared, *self._of_redis])

    def families(self) -> list[Family]:
        """All there are."""
        return [*self._shared, *self._of_redis]

    def collect(self, gateway: "Gateway") -> None:
        """What is counted elsewhere in this process."""
        self.vitals.look()
        self.streams.set(to=gateway.hub.pulse.streams)
        for result, count in gateway.snapshots.reads.items():
            self._cache.values[result,] = count
        for name, count in gateway.hub.sent.items():
            self.events.values[name,] = count
        for problem, count in gateway.refusals.counts.items():
            self.refused.values[problem,] = count
        for error, count in errors.FAULTS.items():
            self._faults.values[error,] = count

    async def _look_at_redis(self, gateway: "Gateway") -> None:
        """One look, which all that look in the same second share. Old values would be lies: without Redis none."""
        for each in self._of_redis[2:]:
            each.values.clear()
        try:
            queues, operated = await gateway.queues.all()
            now_ms = await gateway.store.now_ms()
            workers = await gateway.store.workers()
        except (StoreUnavailable, OutcomeUnknown):
            self._redis_up.set(to=0)
            return
        self._redis_up.set(to=1)
        self._queues |= operated
        for queue in queues:
            label = queue.queue if queue.queue in self._queues else OTHER
            for state in _DEPTHS:
                _sum_up(self._depth, (label, state), getattr(queue, state))
            _sum_up(self._bytes, (label,), queue.bytes)
            _sum_up(self._drain, (label,), queue.drain_per_s or 0)
            age_s = (queue.oldest_age_ms or 0) / 1000
            self._age.set(label, to=max(age_s, self._age.values.get((label,), 0)))
            if label != OTHER:
                self._limit.set(label, to=next(each.max for each in queue.limits if each.limit == "queue-tasks"))
        self._workers.set_all({("ready",): 0, ("starting",): 0, ("draining",): 0})
        for worker in workers:
            if now_ms - worker.beat_ms <= worker.lease_ms:
                _sum_up(self._workers, (worker.state,), 1)


def _sum_up(gauge: Gauge, labels: tuple[str, ...], more: float) -> None:
    gauge.set(*labels, to=gauge.values.get(labels, 0) + more)

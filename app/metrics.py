"""`GET /metrics`: what this process has counted, what its siblings have, and the queues as Redis has them."""

import asyncio
from bisect import bisect_left
from http import HTTPStatus
from typing import TYPE_CHECKING

from app.access_log import CLIENT_GONE
from app.errors import KINDS
from app.observers import Observed
from app.siblings import Siblings
from app.stored import Stored
from taskgate import metrics
from taskgate.metrics import OTHER, REQUEST_BUCKETS, Counter, Family, Gauge, Histogram
from taskgate.vitals import Vitals

if TYPE_CHECKING:
    from app.gateway import Gateway

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STREAMS = ("/tasks/{task_id}/events", "/events")
"""How long a client follows one is its own affair."""

_NOWHERE = (0.0,) * (len(REQUEST_BUCKETS) + 2)

_LIMITS = (
    "queue-tasks",
    "queue-bytes",
    "queue-wait",
    "tenant-tasks",
    "tenant-bytes",
    "tenant-wait",
    "rate",
    "rate-key",
)
_OF_SUBMISSIONS = (
    *("bad-request", "body-timeout", "body-too-large", "dependency-unavailable", "idempotency-key-invalid"),
    *("idempotency-key-reused", "internal-error", "invalid-json", "overloaded", "service-draining", "starting"),
    *("unique-conflict", "unsupported-media-type", "validation-error"),
)


class Metrics:
    """The counters of one gateway process. A queue has a label of its own if an operator has named it, not a client."""

    def __init__(self, queues: set[str], siblings: Siblings | None = None) -> None:
        """`queues`: those that the policy names; others become known."""
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
        ).known(*_LIMITS, *_OF_SUBMISSIONS)
        self.refused = Counter("taskgate_requests_refused_total", "Requests refused, by problem.", "problem").known(
            *KINDS
        )
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
        self._shared = [*[each for each in vars(self).values() if isinstance(each, Family)], *self.vitals.families]
        self._stored = Stored(queues)

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
        cell = self._http.cell(method, route or OTHER, str(status or CLIENT_GONE))
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
        await self._stored.look(gateway)
        self.collect(gateway)
        shared = self._shared if self.siblings is None else self.siblings.added_up(self._shared)
        return metrics.text([*shared, metrics.build_info(), *self._stored.families()])

    def families(self) -> list[Family]:
        """All there are."""
        return [*self._shared, metrics.build_info(), *self._stored.families()]

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

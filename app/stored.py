"""What Redis says of queues and supervisors, for the metrics: looked at anew for each scrape."""

from typing import TYPE_CHECKING

from app.readiness import is_alive
from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.metrics import OTHER, Family, Gauge

if TYPE_CHECKING:
    from app.gateway import Gateway

_DEPTHS = ("queued", "scheduled", "retrying", "running", "dead")


class Stored:
    """Every gateway tells the same, so its processes' are not added up."""

    def __init__(self, queues: set[str]) -> None:
        """`queues`: those with a label of their own; what operators have named is added."""
        self._queues = queues
        self._up = Gauge("taskgate_redis_up", "Whether Redis answered this scrape.")
        self._depth = Gauge("taskgate_queue_depth", "Tasks in a queue, by state; dead: dead letters.", "queue", "state")
        self._age = Gauge("taskgate_queue_oldest_age_seconds", "Age of the oldest queued task.", "queue")
        self._bytes = Gauge("taskgate_queue_bytes", "What waits in a queue, as its limit counts it.", "queue")
        self._limit = Gauge("taskgate_queue_limit_tasks", "How many may wait in a queue.", "queue")
        self._drain = Gauge("taskgate_queue_drain_per_second", "Tasks that leave a queue, as measured.", "queue")
        self._workers = Gauge("taskgate_workers", "Supervisors that have beaten within their lease, by state.", "state")

    def families(self) -> list[Family]:
        """All there are."""
        return [each for each in vars(self).values() if isinstance(each, Family)]

    async def look(self, gateway: "Gateway") -> None:
        """One look, which all that look in the same second share. Old values would be lies: without Redis none."""
        for each in self.families():
            each.values.clear()
        self._up.set(to=0)
        try:
            queues, operated = await gateway.queues.all()
            now_ms = await gateway.store.now_ms()
            workers = await gateway.store.workers()
        except (StoreUnavailable, OutcomeUnknown):
            return
        self._up.set(to=1)
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
            if is_alive(worker, now_ms):
                _sum_up(self._workers, (worker.state,), 1)


def _sum_up(gauge: Gauge, labels: tuple[str, ...], more: float) -> None:
    gauge.set(*labels, to=gauge.values.get(labels, 0) + more)

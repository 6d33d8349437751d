"""A supervisor that a benchmark plays itself, by calls of the store."""

from taskgate.contract.models import Served, WorkerInfo

WORKER = "bench-1"
LEASE_MS = 60_000
SERVED = [Served("default", "noop", "sync")]


def worker_info() -> WorkerInfo:
    return WorkerInfo(
        id=WORKER,
        host="bench",
        pid=1,
        started_ms=0,
        lease_ms=LEASE_MS,
        queues=["default"],
        types=[],
        state="ready",
        children=[],
        wanted_children=0,
        guard="ok",
    )

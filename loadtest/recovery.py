"""What a death costs: until it is told, until its slot works again, until another machine has taken over."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator

from loadtest import marks
from loadtest.measures import Run, Sizes, Watch, until
from loadtest.services import Running, Service
from loadtest.valkey import Durability, serving

LEASE_S = 6.0


def recovery(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`recovery`: the worst of some child deaths, and a machine's death, in milliseconds."""
    with serving(durability) as valkey, service.running(valkey, processes=1, supervisors=2) as running:
        running.work()
        watch = Watch(running, valkey, sizes)
        with contextlib.closing(running.connect()) as connection:
            deaths = [_child_death(running, connection, 2 * n) for n in range(sizes.deaths)]
        takeover_ms = _machine_death(running, 2 * sizes.deaths)
        figures = {
            "visible_ms": max(visible for visible, _ in deaths),
            "slot_ms": max(slot for _, slot in deaths),
            "takeover_ms": takeover_ms,
        }
        yield watch.run("recovery", service, durability, figures)


def _child_death(running: Running, connection: http.client.HTTPConnection, n: int) -> tuple[float, float]:
    """A task that kills its child, then one for every slot: until its error is read, until the last of these starts."""
    until(lambda: _whole(running), "the pools did not become whole again")
    task_id = running.submit(json.dumps({"type": "dies", "payload": {"n": n}}), connection)
    until(lambda: _failed(running, task_id, connection), "the death was not told", every_s=0.001)
    seen_s = time.time()
    [died] = _starts(running, n)
    for _ in running.workers:
        running.submit(json.dumps({"type": "sleeps", "payload": {"n": n + 1, "seconds": 0.3}}), connection)
    until(lambda: len(_starts(running, n + 1)) == len(running.workers), "a slot did not come back")
    return (seen_s - died.at_s) * 1000, (_starts(running, n + 1)[-1].at_s - died.at_s) * 1000


def _machine_death(running: Running, n: int) -> float:
    """Supervisor, guard and children of a running task die at once: until it starts elsewhere, past the lease."""
    running.submit(json.dumps({"type": "sleeps", "payload": {"n": n, "seconds": 5}}))
    until(lambda: bool(_starts(running, n)), "the task did not start")
    [victim] = [group for group in running.workers if group.holds(_starts(running, n)[0].pid)]
    died_s = time.time()
    victim.vanish()
    until(lambda: len(_starts(running, n)) == 2, "nobody took over", within_s=5 * LEASE_S)
    return (_starts(running, n)[1].at_s - died_s - LEASE_S) * 1000


def _starts(running: Running, n: int) -> list[marks.Mark]:
    return [mark for mark in marks.read(running.marks) if mark.n == n]


def _failed(running: Running, task_id: str, connection: http.client.HTTPConnection) -> bool:
    _, answer = running.request("GET", f"/tasks/{task_id}?fields=status", connection=connection, fresh=True)
    return bool(json.loads(answer)["status"] == "failed")


def _whole(running: Running) -> bool:
    _, answer = running.request("GET", "/workers")
    workers = json.loads(answer)["items"]
    return len(workers) == len(running.workers) and all(worker["whole"] for worker in workers)

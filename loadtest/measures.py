"""What is measured of a running service: load in, jobs drained, time to start, cost of an answer."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from loadtest import client, machine, marks
from loadtest.services import NOOP, Running, Service
from loadtest.valkey import Durability, Valkey, serving


@dataclass(frozen=True)
class Sizes:
    """How long and how much; `short` proves that it works, `full` gives figures."""

    load_s: float
    drain_s: float
    fill: int
    drips: int
    progress_calls: int
    streams: int
    store_tasks: int
    deaths: int
    idle_s: float
    quiet_s: float
    many: int
    many_s: float
    """For each step of them, at most."""
    clients: int
    flood_s: float


FULL = Sizes(
    load_s=5,
    drain_s=20,
    fill=20_000,
    drips=300,
    progress_calls=300_000,
    streams=5_000,
    store_tasks=20_000,
    deaths=20,
    idle_s=10,
    quiet_s=10,
    many=1_000_000,
    many_s=300,
    clients=1000,
    flood_s=60,
)
SHORT = Sizes(
    load_s=0.5,
    drain_s=15,
    fill=300,
    drips=20,
    progress_calls=10_000,
    streams=100,
    store_tasks=512,
    deaths=2,
    idle_s=1,
    quiet_s=0,
    many=2000,
    many_s=30,
    clients=30,
    flood_s=1,
)


@dataclass(frozen=True)
class Run:
    """One measurement of one service on one kind of server."""

    what: str
    service: str
    durability: str
    figures: dict[str, float]
    foreign_cores: float = 0.0
    round: int = 1
    """Runs of one round lie within minutes: ratios are taken among them, since machines change their speed."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def submissions_and_work(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`submit`: accepted jobs a second while no worker runs. `work`: the same jobs, drained by two processes."""
    with serving(durability) as valkey, service.running(valkey) as running:
        warm = running.load("/tasks", method="POST", body=NOOP, seconds=min(1, sizes.load_s))
        watch = Watch(running, valkey, sizes)
        report = running.load("/tasks", method="POST", body=NOOP, seconds=sizes.load_s, first=2 * client.FIRST)
        yield watch.run("submit", service, durability, _load_figures(report, watch, accepted="202"))
        if service.worker:
            waiting = warm["answered"] + report["answered"]
            watch = Watch(running, valkey, sizes)
            running.work()
            done = _drained(running, waiting, within_s=sizes.drain_s)
            yield watch.run("work", service, durability, _rates(done, waiting) | watch.costs(len(done)))


def status_reads(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`status`: reads a second of one job that has not ended (BackgroundTasks: that has, it knows no other)."""
    with serving(durability) as valkey, service.running(valkey) as running:
        if service.publishes:
            running.work()
            task_id = running.submit('{"type":"hold","payload":{"seconds":300}}')
            until(lambda: _status(running, task_id) == "running", f"{service.name}: the job did not start")
        else:
            task_id = running.submit(NOOP.replace(client.NUMBER, "1"))
        path = f"/tasks/{task_id}"
        running.load(path, seconds=min(1, sizes.load_s))
        watch = Watch(running, valkey, sizes)
        report = running.load(path, seconds=sizes.load_s)
        yield watch.run("status", service, durability, _load_figures(report, watch, accepted="200"))


def bare_replies(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`bare-submit`, `bare-status`: the same requests, answered by an application that does nothing."""
    with serving(durability) as valkey, service.running(valkey) as running:
        running.load("/tasks", method="POST", body=NOOP, seconds=min(1, sizes.load_s))
        for what, code, plan in (
            ("bare-submit", "202", {"method": "POST", "body": NOOP}),
            ("bare-status", "200", {"method": "GET"}),
        ):
            watch = Watch(running, valkey, sizes)
            report = running.load("/tasks", **plan, seconds=sizes.load_s)
            yield watch.run(what, service, durability, _load_figures(report, watch, accepted=code))


def latency(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`latency`: from before the request is sent to the first line of the job, one job each 20 ms."""
    with serving(durability) as valkey, service.running(valkey) as running:
        running.work()
        running.submit(NOOP.replace(client.NUMBER, "1"))
        until(lambda: marks.count(running.marks) == 1, f"{service.name}: the first job did not run")
        watch = Watch(running, valkey, sizes)
        sent_s = {}
        with contextlib.closing(running.connect()) as connection:
            for n in range(2, 2 + sizes.drips):
                sent_s[n] = time.time()
                running.submit(NOOP.replace(client.NUMBER, str(n)), connection)
                time.sleep(max(0.0, sent_s[n] + 0.02 - time.time()))
        until(lambda: marks.count(running.marks) > sizes.drips, f"{service.name}: jobs were lost")
        waits = sorted(mark.at_s - sent_s[mark.n] for mark in marks.read(running.marks) if mark.n in sent_s)
        figures = {"p50_ms": waits[len(waits) // 2] * 1000, "p99_ms": waits[int(len(waits) * 0.99)] * 1000}
        yield watch.run("latency", service, durability, figures)


def memory(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`memory`: bytes that the server holds for each finished no-op task."""
    with serving(durability) as valkey, service.running(valkey) as running:
        watch = Watch(running, valkey, sizes)
        before = valkey.used_memory()
        running.load("/tasks", method="POST", body=NOOP, count=sizes.fill, seconds=60)
        running.work()
        done = _drained(running, sizes.fill, within_s=60)
        until(lambda: _settled(valkey), "the server's memory did not settle")
        figures = _rates(done, sizes.fill) | {"bytes": (valkey.used_memory() - before) / sizes.fill}
        yield watch.run("memory", service, durability, figures)


def progress(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`progress`: nanoseconds of one progress() call, measured by the handler itself."""
    with serving(durability) as valkey, service.running(valkey) as running:
        running.work()
        watch = Watch(running, valkey, sizes)
        body = json.dumps({"type": "progress.cost", "payload": {"calls": sizes.progress_calls}})
        task_id = running.submit(body)
        until(lambda: _status(running, task_id) == "succeeded", "the job did not succeed", within_s=60)
        _, answer = running.request("GET", f"/tasks/{task_id}/result")
        yield watch.run("progress", service, durability, {"ns": float(json.loads(answer)["ns"])})


def idle(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`idle`: calls a second that front and workers make together while there is nothing to do."""
    with serving(durability) as valkey, service.running(valkey) as running:
        running.work()
        time.sleep(3)  # children become ready, types are published
        watch = Watch(running, valkey, sizes)
        before = valkey.client_calls()
        time.sleep(sizes.idle_s)
        own = 1
        figures = {"calls_per_s": (valkey.client_calls() - before - own) / sizes.idle_s}
        yield watch.run("idle", service, durability, figures | watch.costs(1))


class Watch:
    """CPU time of the parts, and of others, from construction on."""

    def __init__(self, running: Running, valkey: Valkey, sizes: Sizes) -> None:
        self._running, self._valkey = running, valkey
        groups = [*running.groups, valkey.group]
        machine.wait_until_quiet(groups, within_s=sizes.quiet_s)
        self._foreign = machine.Foreign(groups)
        self._before = self._cpu_s()

    def costs(self, units: int) -> dict[str, float]:
        """Microseconds of CPU for each of `units`, by part."""
        spent = {name: now - self._before[name] for name, now in self._cpu_s().items()}
        return {f"{name}_cpu_us": 1e6 * cpu_s / max(1, units) for name, cpu_s in spent.items()}

    def run(self, what: str, service: Service, durability: Durability, figures: dict[str, float]) -> Run:
        rounded = {name: round(figure, 3) for name, figure in figures.items()}
        return Run(what, service.name, str(durability), rounded, round(self._foreign.cores(), 2))

    def _cpu_s(self) -> dict[str, float]:
        workers = self._running.workers
        return {
            "app": self._running.app.cpu_s(),
            "workers": sum(group.cpu_s() for group in workers),
            "supervisor": sum(group.first_cpu_s() for group in workers),
            "valkey": self._valkey.used_cpu_s(),
        }


def _load_figures(report: dict[str, Any], watch: Watch, *, accepted: str) -> dict[str, float]:
    answered = report["answered"]
    wrong = answered - report["statuses"].get(accepted, 0)
    kept = {name: report[name] for name in ("rps", "p50_ms", "p99_ms", "cpu_cores")}
    return kept | {"wrong": wrong} | watch.costs(answered)


def _drained(running: Running, waiting: int, *, within_s: float) -> list[marks.Mark]:
    deadline = time.monotonic() + within_s
    while marks.count(running.marks) < waiting and time.monotonic() < deadline:
        time.sleep(0.05)
    return marks.read(running.marks)


def _rates(done: list[marks.Mark], waiting: int) -> dict[str, float]:
    """The rate is that of the middle 80 %: neither start nor tail."""
    times = sorted(mark.at_s for mark in done)
    low, high = len(times) // 10, len(times) * 9 // 10
    if len(times) < 20 or times[high] <= times[low]:
        raise OSError(f"only {len(times)} of {waiting} jobs ran")
    jobs = len({mark.n for mark in done})
    return {
        "per_s": (high - low) / (times[high] - times[low]),
        "waiting": waiting,
        "done": len(done),
        "jobs": jobs,
        "pids": len({mark.pid for mark in done}),
    }


def _status(running: Running, task_id: str) -> str:
    _, answer = running.request("GET", f"/tasks/{task_id}")
    return str(json.loads(answer)["status"])


def _settled(valkey: Valkey) -> bool:
    before = valkey.used_memory()
    time.sleep(0.5)
    return abs(valkey.used_memory() - before) < 1024


def until(wanted: Callable[[], bool], otherwise: str, *, within_s: float = 20, every_s: float = 0.01) -> None:
    """Raises OSError with `otherwise` when the time is up."""
    deadline = time.monotonic() + within_s
    while not wanted():
        if time.monotonic() > deadline:
            raise OSError(otherwise)
        time.sleep(every_s)

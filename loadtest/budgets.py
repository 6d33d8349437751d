"""The budgets of docs/architecture.md beside the figures of one run: medians, ratios to the best peer, verdicts."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest import machine
from loadtest.measures import Run

QUEUES = ("saq", "dramatiq", "arq", "celery", "rq")
"""Peers that keep their jobs; BackgroundTasks is compared apart."""


@dataclass(frozen=True)
class Row:
    """One line of the report. `holds`: None where there is no budget, or nothing to compare with."""

    what: str
    figure: str
    budget: str = ""
    best_peer: str = ""
    holds: bool | None = None
    noisy: bool = False
    """Other processes used the machine while it was measured."""


Cell = tuple[str, str, str]
"""What, service, durability."""


class Figures:
    """The runs of one benchmark; a figure is the median of its rounds, of its quiet runs where there are any."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs: dict[Cell, list[Run]] = {}
        for run in runs:
            self._runs.setdefault((run.what, run.service, run.durability), []).append(run)

    def get(self, cell: Cell, name: str) -> float | None:
        rounds = self._rounds(cell, name)
        return statistics.median(rounds.values()) if rounds else None

    def ratio(self, cell: Cell, other: Cell, name: str) -> float | None:
        """The first through the second, each round by itself: a machine that changes its speed changes both."""
        ours, theirs = self._rounds(cell, name), self._rounds(other, name)
        ratios = [ours[number] / theirs[number] for number in ours.keys() & theirs.keys() if theirs[number]]
        return statistics.median(ratios) if ratios else None

    def noisy(self, *cells: Cell) -> bool:
        """Whether one of these was never measured while the machine was quiet."""
        return any(runs and not _quiet(runs) for cell in cells if (runs := self._runs.get(cell, [])))

    def best(self, what: str, durability: str, name: str, services: Sequence[str]) -> Cell | None:
        """The service with the highest figure."""
        cells = [(what, service, durability) for service in services]
        return max((cell for cell in cells if self.get(cell, name)), key=lambda c: self.get(c, name) or 0, default=None)

    def _rounds(self, cell: Cell, name: str) -> dict[int, float]:
        runs = self._runs.get(cell, [])
        by_round: dict[int, list[float]] = {}
        for run in _quiet(runs) or runs:
            if name in run.figures:
                by_round.setdefault(run.round, []).append(run.figures[name])
        return {number: statistics.median(values) for number, values in by_round.items()}


def _quiet(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.foreign_cores < machine.NOISE_CORES]


def rows(figures: Figures) -> list[Row]:
    """All lines for which something was measured."""
    return [
        *_times_the_best(figures, "submissions/s, fsynced (peers as they come)", "submit", "fsync", "rps", times=5),
        *_times_the_best(
            figures, "  … beside BackgroundTasks", "submit", "fsync", "rps", times=2.5, services=("background",)
        ),
        *_times_the_best(figures, "submissions/s, all fsynced", "submit", "fsync", "rps", peers_on="fsync"),
        *_against_bare(figures, "gateway CPU per submission", "submit", "fsync", times=2.5),
        *_times_the_best(figures, "status reads/s of a live task", "status", "memory", "rps", times=8),
        *_against_bare(figures, "gateway CPU per status read", "status", "memory", times=1.6),
        *_at_most(
            figures, "1,000 clients obey Retry-After: all in, beside the drain", "obeying", "fsync", "times", 1.11, "×"
        ),
        *_at_most(figures, "  … busiest second after the first round", "obeying", "fsync", "busiest", 5, "× drain"),
        *_at_most(figures, "10 × the drain: p99 of the 202, beside half load", "flood", "fsync", "times", 2, "×"),
        *_at_most(figures, "  … gateway's memory, after 10 s", "flood", "fsync", "gateway_percent", 5, "%"),
        *_at_most(figures, "  … Valkey's memory, after 10 s", "flood", "fsync", "valkey_percent", 5, "%"),
        *_at_most(figures, "p99 of the 202 at half of the peak (open loop)", "curve-0.50", "fsync", "p99_ms", 5, "ms"),
        *_cpu_per_request(figures, "submission", "submit", "fsync"),
        *_cpu_per_request(figures, "status read", "status", "memory"),
        *_parts(figures, "submission", "anatomy-submit"),
        *_parts(figures, "status read", "anatomy-status"),
        *_times_the_best(figures, "no-op tasks/s, 2 processes, in memory", "work", "memory", "per_s", times=4),
        *_times_the_best(figures, "no-op tasks/s, 2 processes, fsynced", "work", "fsync", "per_s", peers_on="fsync"),
        *_cpu_of_a_noop(figures),
        *_at_most(figures, "submit → start, idle, p50", "latency", "fsync", "p50_ms", 3, "ms"),
        *_at_most(figures, "submit → start, idle, p99", "latency", "fsync", "p99_ms", 15, "ms"),
        *_at_most(figures, "child death → error visible, worst", "recovery", "fsync", "visible_ms", 100, "ms"),
        *_at_most(figures, "child death → slot back, worst", "recovery", "fsync", "slot_ms", 2000, "ms"),
        *_at_most(
            figures, "machine death → next attempt, beyond lease", "recovery", "fsync", "takeover_ms", 2000, "ms"
        ),
        *_at_most(figures, "progress()", "progress", "memory", "ns", 1000, "ns"),
        *_at_most(figures, "5,000 streams, 1,000 updates/s: age p99", "streams", "memory", "age_p99_ms", 400, "ms"),
        *_at_most(figures, "  … memory a stream", "streams", "memory", "bytes", 64 * 1024, "B"),
        *_at_most(figures, "Valkey CPU per submission, groups of 64", "store-64", "fsync", "plain_us", 35, "µs"),
        *_at_most(figures, "  … with idempotency key", "store-64", "fsync", "keyed_us", 50, "µs"),
        *_at_most(figures, "Valkey CPU per submission, groups of 128", "store-128", "fsync", "plain_us", 35, "µs"),
        *_at_most(figures, "  … with idempotency key", "store-128", "fsync", "keyed_us", 50, "µs"),
        *_at_most(figures, "memory per finished task, store alone", "store-memory", "memory", "bytes", 3072, "B"),
        *_at_most(figures, "memory per finished task, end to end", "memory", "memory", "bytes", 3072, "B"),
        *_at_most(figures, "gateway: growth over 4/5 of 1,000,000 tasks", "flat", "memory", "app_mib", 8, "MiB"),
        *_at_most(
            figures, "supervisor: growth over 4/5 of 1,000,000 tasks", "flat", "memory", "supervisor_mib", 8, "MiB"
        ),
        *_at_most(figures, "CPU per task, 2 children beside 1", "children", "memory", "ratio", 1.15, "×"),
        *_at_most(figures, "calls to the server/s while idle", "idle", "memory", "calls_per_s", 1, "/s"),
    ]


def problems(runs: Iterable[Run]) -> list[str]:
    """What makes figures worthless or Taskgate wrong: answers that were not accepted, jobs lost or run twice."""
    found = []
    for run in runs:
        where, figures = f"{run.what}, {run.service}, {run.durability}", run.figures
        if figures.get("wrong"):
            found.append(f"{where}: {figures['wrong']:.0f} answers were not as expected")
        if run.service == "taskgate" and "jobs" in figures:
            done, jobs, waiting = figures["done"], figures["jobs"], figures["waiting"]
            if not done == jobs == waiting:
                found.append(f"{where}: {waiting:.0f} accepted, {done:.0f} runs of {jobs:.0f} jobs in time")
    return found


def _times_the_best(
    figures: Figures,
    label: str,
    what: str,
    durability: str,
    name: str,
    *,
    times: float | None = None,
    services: Sequence[str] = QUEUES,
    peers_on: str = "memory",
) -> list[Row]:
    cell = what, "taskgate", durability
    ours = figures.get(cell, name)
    if ours is None:
        return []
    budget = f"≥ {times:g} × best" if times else ""
    best = figures.best(what, peers_on, name, services)
    if best is None:
        return [Row(label, f"{ours:,.0f}", budget, "not measured", None, figures.noisy(cell))]
    ratio, theirs = figures.ratio(cell, best, name), figures.get(best, name)
    beside = f"{ratio:.1f} × {best[1]} ({theirs:,.0f})"
    holds = ratio >= times if ratio and times else None
    return [Row(label, f"{ours:,.0f}", budget, beside, holds, figures.noisy(cell, best))]


def _against_bare(figures: Figures, label: str, what: str, durability: str, *, times: float) -> list[Row]:
    cell, bare = (what, "taskgate", durability), (f"bare-{what}", "bare", "memory")
    ours, theirs = figures.get(cell, "app_cpu_us"), figures.get(bare, "app_cpu_us")
    if ours is None:
        return []
    budget, ratio = f"≤ {times:g} × bare reply", figures.ratio(cell, bare, "app_cpu_us")
    if theirs is None or ratio is None:
        return [Row(label, f"{ours:.0f} µs", budget, "not measured", None, figures.noisy(cell))]
    figure, holds = f"{ours:.0f} µs, {ratio:.2f} ×", ratio <= times
    return [Row(label, figure, budget, f"bare: {theirs:.0f} µs", holds, figures.noisy(cell, bare))]


def _cpu_per_request(figures: Figures, label: str, what: str, durability: str) -> list[Row]:
    """No budget: the microseconds of gateway and server together, of every service."""
    cells = [(what, "taskgate", durability), *((what, peer, "memory") for peer in (*QUEUES, "background"))]
    costs = {}
    for cell in cells:
        front, server = figures.get(cell, "app_cpu_us"), figures.get(cell, "valkey_cpu_us")
        if front is not None and server is not None:
            costs[cell[1]] = f"{front:,.0f} + {server:,.0f}"
    ours = costs.pop("taskgate", None)
    if ours is None:
        return []
    beside = " · ".join(f"{peer}: {cost}" for peer, cost in costs.items())
    return [Row(f"CPU per {label}: gateway + Valkey", f"{ours} µs", "", beside, None, figures.noisy(*cells))]


PARTS = {
    "parse": "parse (envelope and payload)",
    "checks": "checks (type and schema)",
    "encode": "encode (id, record, arguments)",
    "script": "script (call in groups of 32, client's half)",
    "reply": "reply (JSON and headers)",
    "cached": "answer from the cache",
    "group": "group commit (futures, endpoint)",
    "wire": "HTTP (parser, door, head)",
    "loop": "event loop, sockets, kernel",
}
"""Of `anatomy`, in the order of docs/performance.md."""


def _parts(figures: Figures, label: str, what: str) -> list[Row]:
    """No budget: what the gateway's time is made of."""
    cell = what, "taskgate", "fsync"
    found = [(text, figures.get(cell, f"{name}_us")) for name, text in PARTS.items()]
    return [
        Row(f"  {label}: {text}", f"{cost:.1f} µs", noisy=figures.noisy(cell))
        for text, cost in found
        if cost is not None
    ]


def _cpu_of_a_noop(figures: Figures) -> list[Row]:
    """No budget: what the rate is made of."""
    cell = "work", "taskgate", "memory"
    parts = [figures.get(cell, f"{part}_cpu_us") for part in ("workers", "supervisor", "valkey")]
    workers, supervisor, valkey = parts
    if workers is None or supervisor is None or valkey is None:
        return []
    costs = (("supervisor", supervisor), ("children and guard", workers - supervisor), ("Valkey", valkey))
    return [Row(f"  CPU of a no-op task: {part}", f"{cost:.0f} µs", noisy=figures.noisy(cell)) for part, cost in costs]


def _at_most(figures: Figures, label: str, what: str, durability: str, name: str, limit: float, unit: str) -> list[Row]:
    cell = what, "taskgate", durability
    ours = figures.get(cell, name)
    if ours is None:
        return []
    peers = [(peer, value) for peer in QUEUES if (value := figures.get((what, peer, "memory"), name)) is not None]
    best = min(peers, key=lambda pair: pair[1], default=None)
    beside = f"{best[0]}: {_shown(best[1], unit)}" if best else ""
    return [Row(label, _shown(ours, unit), f"≤ {limit:g} {unit}", beside, ours <= limit, figures.noisy(cell))]


def _shown(value: float, unit: str) -> str:
    return f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"

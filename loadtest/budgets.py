"""The budgets of docs/architecture.md beside the figures of one run: medians, ratios to the best peer, verdicts."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest import machine
from loadtest.measures import Run

QUEUES = ("saq", "dramatiq")
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


class Figures:
    """The runs of one benchmark; a figure is the median of its quiet runs, or of all where none was quiet."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs: dict[tuple[str, str, str], list[Run]] = {}
        for run in runs:
            self._runs.setdefault((run.what, run.service, run.durability), []).append(run)

    def get(self, what: str, service: str, durability: str, name: str) -> float | None:
        quiet, all_runs = self._chosen(what, service, durability)
        values = [run.figures[name] for run in quiet or all_runs]
        return statistics.median(values) if values else None

    def noisy(self, what: str, service: str, durability: str) -> bool:
        quiet, all_runs = self._chosen(what, service, durability)
        return bool(all_runs) and not quiet

    def best(self, what: str, durability: str, name: str, services: Sequence[str] = QUEUES) -> tuple[str, float] | None:
        """The service with the highest figure, and that figure."""
        seen = [(service, self.get(what, service, durability, name)) for service in services]
        known = [(service, figure) for service, figure in seen if figure]
        return max(known, key=lambda pair: pair[1], default=None)

    def _chosen(self, what: str, service: str, durability: str) -> tuple[list[Run], list[Run]]:
        runs = self._runs.get((what, service, durability), [])
        return [run for run in runs if run.foreign_cores < machine.NOISE_CORES], runs


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
        *_times_the_best(figures, "no-op tasks/s, 2 processes, in memory", "work", "memory", "per_s", times=4),
        *_times_the_best(figures, "no-op tasks/s, 2 processes, fsynced", "work", "fsync", "per_s", peers_on="fsync"),
        *_at_most(figures, "submit → start, idle, p50", "latency", "fsync", "p50_ms", 3, "ms"),
        *_at_most(figures, "submit → start, idle, p99", "latency", "fsync", "p99_ms", 15, "ms"),
        *_at_most(figures, "progress()", "progress", "memory", "ns", 1000, "ns"),
        *_at_most(figures, "Valkey CPU per submission, groups of 64", "store-64", "fsync", "plain_us", 35, "µs"),
        *_at_most(figures, "  … with idempotency key", "store-64", "fsync", "keyed_us", 50, "µs"),
        *_at_most(figures, "Valkey CPU per submission, groups of 128", "store-128", "fsync", "plain_us", 35, "µs"),
        *_at_most(figures, "  … with idempotency key", "store-128", "fsync", "keyed_us", 50, "µs"),
        *_at_most(figures, "memory per finished task, store alone", "store-memory", "memory", "bytes", 3072, "B"),
        *_at_most(figures, "memory per finished task, end to end", "memory", "memory", "bytes", 3072, "B"),
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
    ours = figures.get(what, "taskgate", durability, name)
    best = figures.best(what, peers_on, name, services)
    if ours is None:
        return []
    ratio = ours / best[1] if best else None
    return [
        Row(
            label,
            f"{ours:,.0f}",
            f"≥ {times:g} × best" if times else "",
            f"{ratio:.1f} × {best[0]} ({best[1]:,.0f})" if best and ratio else "not measured",
            ratio >= times if ratio and times else None,
            figures.noisy(what, "taskgate", durability) or bool(best and figures.noisy(what, best[0], peers_on)),
        )
    ]


def _against_bare(figures: Figures, label: str, what: str, durability: str, *, times: float) -> list[Row]:
    ours = figures.get(what, "taskgate", durability, "app_cpu_us")
    bare = figures.get(f"bare-{what}", "bare", "memory", "app_cpu_us")
    if ours is None:
        return []
    budget, reference = f"≤ {times:g} × bare reply", f"bare: {bare:.0f} µs" if bare else "not measured"
    figure = f"{ours:.0f} µs" + (f", {ours / bare:.2f} ×" if bare else "")
    noisy = figures.noisy(what, "taskgate", durability) or figures.noisy(f"bare-{what}", "bare", "memory")
    return [Row(label, figure, budget, reference, ours / bare <= times if bare else None, noisy)]


def _at_most(figures: Figures, label: str, what: str, durability: str, name: str, limit: float, unit: str) -> list[Row]:
    ours = figures.get(what, "taskgate", durability, name)
    if ours is None:
        return []
    peers = [(peer, figures.get(what, peer, "memory", name)) for peer in QUEUES]
    best = min(((peer, value) for peer, value in peers if value), key=lambda pair: pair[1], default=None)

    def show(value: float) -> str:
        return f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"

    return [
        Row(
            label,
            show(ours),
            f"≤ {limit:g} {unit}",
            f"{best[0]}: {show(best[1])}" if best else "",
            ours <= limit,
            figures.noisy(what, "taskgate", durability),
        )
    ]

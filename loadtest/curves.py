"""Rate against latency: how long a 202 takes at a share of the highest rate, for us and for the peers."""

from collections.abc import Iterator, Sequence

from loadtest import drawing, machine
from loadtest.budgets import Figures
from loadtest.measures import Run, Sizes
from loadtest.services import NOOP, Service
from loadtest.valkey import Durability, serving

SHARES = (0.1, 0.25, 0.5, 0.65, 0.8, 0.9)
"""Of the rate that 64 connections in a closed loop reach."""


def rate_and_latency(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`curve-<share>`: submissions that are due at that share of the peak; `curve-peak`: those of a closed loop."""
    with serving(durability) as valkey, service.running(valkey) as running:
        groups = [*running.groups, valkey.group]

        def load(module: str, seconds: float, **more: float) -> tuple[dict[str, float], float]:
            watch = machine.Foreign(groups)
            plan = {"method": "POST", "body": NOOP, "seconds": seconds, **more}
            report = running.load("/tasks", module=module, **plan)
            wrong = report["answered"] - report["statuses"].get("202", 0)
            figures = {name: round(report[name], 3) for name in ("rps", "p50_ms", "p99_ms")} | {"wrong": wrong}
            return figures, round(watch.cores(), 2)

        load("loadtest.client", min(1, sizes.load_s))
        machine.wait_until_quiet(groups, within_s=sizes.quiet_s)
        peak, foreign = load("loadtest.client", sizes.load_s / 2)
        yield Run("curve-peak", service.name, str(durability), peak, foreign)
        for share in SHARES:
            figures, foreign = load("loadtest.open_loop", sizes.load_s / 2, rate=max(1.0, share * peak["rps"]))
            yield Run(f"curve-{share:.2f}", service.name, str(durability), figures, foreign)


def lines(runs: Sequence[Run]) -> dict[str, list[drawing.Point]]:
    """What to draw: for each service its rates and 99th percentiles, medians of the rounds."""
    figures = Figures(runs)
    found: dict[str, list[drawing.Point]] = {}
    for service, durability in dict.fromkeys((run.service, run.durability) for run in runs if _is_point(run)):
        cells = [(f"curve-{share:.2f}", service, durability) for share in SHARES]
        points = [(figures.get(cell, "rps"), figures.get(cell, "p99_ms")) for cell in cells]
        found[_called(service, durability)] = [(rate, ms) for rate, ms in points if rate is not None and ms is not None]
    return found


def _is_point(run: Run) -> bool:
    return run.what.startswith("curve-") and run.what != "curve-peak"


def _called(service: str, durability: str) -> str:
    if service == "background":
        return "BackgroundTasks, keeps nothing"
    return f"{service}, {'every 202 synced to disk' if durability == Durability.FSYNC else 'in memory'}"

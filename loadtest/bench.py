"""`make bench`: Taskgate's figures beside its peers', in one run on one machine."""

import argparse
import dataclasses
import datetime
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest import (
    anatomy,
    budgets,
    curves,
    drawing,
    endurance,
    floods,
    machine,
    measures,
    recovery,
    services,
    store_cost,
    streams,
)
from loadtest.arguments import at_least_one
from loadtest.measures import Run, Sizes
from loadtest.peers import commands
from loadtest.services import Service
from loadtest.valkey import Durability

MEMORY, FSYNC = Durability.MEMORY, Durability.FSYNC
RESULTS = Path(__file__).parent / "results"
Cell = tuple[str, Callable[[Sizes], Iterator[Run]]]
"""A name for the reader, and the measurement."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    sizes = measures.SHORT if options.short else measures.FULL
    repeat = options.repeat or (1 if options.short else 3)
    peers = [] if options.no_peers else commands.peers(options.peers)
    cells = [cell for name in options.only for cell in _CELLS[name](peers)]
    console = Console(stderr=True, highlight=False)
    runs: list[Run] = []
    errors: list[str] = []
    facts = machine.facts()
    for round_number in range(1, repeat + 1):  # services take turns: a slow phase of the machine meets all of them
        for name, measure in cells:
            console.print(f"[dim]{round_number}/{repeat}[/] {name}")
            try:
                fresh = _measured(measure, sizes, tries=1 if options.short else 2)
                runs += [dataclasses.replace(run, round=round_number) for run in fresh]
            except (OSError, ValueError) as error:
                errors.append(f"{name}: {error}")
    figures = budgets.Figures(runs)
    rows = budgets.rows(figures)
    errors += budgets.problems(runs)
    _write(options.results, facts, runs, rows, errors)
    _draw(options.results, runs)
    _show(rows, errors, judged=not options.short)
    broken = [row for row in rows if row.holds is False]
    return 1 if errors or (broken and not options.short) else 0


def _measured(measure: Callable[[Sizes], Iterator[Run]], sizes: Sizes, *, tries: int) -> list[Run]:
    """Measured alone on this machine, once more if others used it meanwhile."""
    kept: list[Run] = []
    for _ in range(tries):
        with machine.alone():
            fresh = list(measure(sizes))
        kept += fresh
        if all(run.foreign_cores < machine.NOISE_CORES for run in fresh):
            break
    return kept


def _each(
    measure: Callable[[Service, Durability, Sizes], Iterator[Run]], pairs: Sequence[tuple[Service, Durability]]
) -> list[Cell]:
    def cell(service: Service, durability: Durability) -> Cell:
        name = f"{measure.__name__.replace('_', ' ')}: {service.name} ({durability})"
        return name, lambda sizes: measure(service, durability, sizes)

    return [cell(service, durability) for service, durability in pairs]


def _work(peers: Sequence[Service]) -> list[Cell]:
    pairs = [
        (peer, durability) for peer in peers for durability in (MEMORY, FSYNC) if peer.keeps or durability == MEMORY
    ]
    ours = [(services.taskgate(), FSYNC), (services.taskgate(), MEMORY)]
    return _each(measures.submissions_and_work, pairs + ours)


def _status(peers: Sequence[Service]) -> list[Cell]:
    return _each(measures.status_reads, [(each, MEMORY) for each in (services.taskgate(), *peers)])


def _latency(peers: Sequence[Service]) -> list[Cell]:
    ours = services.taskgate(lease_s=6)
    return _each(measures.latency, [*((peer, MEMORY) for peer in peers), (ours, FSYNC)])


def _curves(peers: Sequence[Service]) -> list[Cell]:
    """Beside the two that accept most: the best that keeps its jobs, and the one that keeps none."""
    best = [(peer, MEMORY) for peer in peers if peer.name in ("saq", "background")]
    return _each(curves.rate_and_latency, [*best, (services.taskgate(), FSYNC)])


def _anatomy(_: Sequence[Service]) -> list[Cell]:
    return _each(anatomy.gateway, [(services.taskgate(), FSYNC)])


def _bare(_: Sequence[Service]) -> list[Cell]:
    return _each(measures.bare_replies, [(services.bare(), MEMORY)])


def _store(_: Sequence[Service]) -> list[Cell]:
    return [
        ("server CPU per submission (memory)", lambda sizes: store_cost.submissions(MEMORY, sizes)),
        ("server CPU per submission (fsync)", lambda sizes: store_cost.submissions(FSYNC, sizes)),
        ("memory per finished task, store alone", lambda sizes: store_cost.finished_memory(MEMORY, sizes)),
    ]


def _alone(measure: Callable[[Service, Durability, Sizes], Iterator[Run]]) -> Callable[[Sequence[Service]], list[Cell]]:
    """Taskgate only, with its own lease."""
    return lambda _: _each(measure, [(services.taskgate(lease_s=6), MEMORY)])


def _floods(_: Sequence[Service]) -> list[Cell]:
    service = services.taskgate(lease_s=6)
    return _each(floods.clients_that_obey, [(service, FSYNC)]) + _each(floods.ten_times_the_drain, [(service, FSYNC)])


_CELLS: dict[str, Callable[[Sequence[Service]], list[Cell]]] = {
    "store": _store,
    "work": _work,
    "anatomy": _anatomy,
    "bare": _bare,  # next to what it is compared with
    "status": _status,
    "latency": _latency,
    "curves": _curves,
    "floods": _floods,
    "memory": lambda _: _each(measures.memory, [(services.taskgate(), MEMORY)]),
    "children": lambda _: _each(endurance.cpu_by_children, [(services.taskgate(), MEMORY)]),
    "flat": lambda _: _each(endurance.flat_memory, [(services.taskgate(lease_s=6, retention_s=30), MEMORY)]),
    "progress": _alone(measures.progress),
    "streams": lambda _: _each(streams.open_streams, [(services.taskgate(), MEMORY)]),
    "idle": _alone(measures.idle),
    "recovery": lambda _: _each(recovery.recovery, [(services.taskgate(lease_s=recovery.LEASE_S), FSYNC)]),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="prove that it works: tiny loads, budgets not judged")
    parser.add_argument(
        "--only",
        type=partial(_names, _CELLS),
        default=list(_CELLS),
        metavar="NAMES",
        help=f"of {', '.join(_CELLS)}; comma-separated",
    )
    parser.add_argument(
        "--peers",
        type=partial(_names, commands.NAMES),
        default=list(commands.USUAL),
        metavar="NAMES",
        help=f"of {', '.join(commands.NAMES)} ({','.join(commands.USUAL)})",
    )
    parser.add_argument("--no-peers", action="store_true", help="Taskgate alone; needs no second environment")
    parser.add_argument("--repeat", type=at_least_one, help="rounds (3; 1 with --short)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


def _names(known: Collection[str], text: str) -> list[str]:
    names = text.split(",")
    unknown = set(names) - set(known)
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return names


def _draw(folder: Path, runs: Sequence[Run]) -> None:
    if lines := curves.lines(runs):
        path = folder / f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}.png"
        drawing.draw(path, lines, title="Accepted submissions: rate against latency")
        print(f"rate against latency: {path}", file=sys.stderr)


def _write(
    folder: Path, facts: dict[str, object], runs: Sequence[Run], rows: Sequence[budgets.Row], errors: Sequence[str]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    document = {
        "at": now.isoformat(timespec="seconds"),
        "machine": facts,
        "rows": [dataclasses.asdict(row) for row in rows],
        "errors": list(errors),
        "runs": [run.as_json() for run in runs],
    }
    path = folder / f"{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(f"all runs: {path}", file=sys.stderr)


def _show(rows: Sequence[budgets.Row], errors: Sequence[str], *, judged: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    table = Table("what", "figure", "budget", "beside", "", box=None, pad_edge=False)
    for row in rows:
        verdict = "" if row.holds is None or not judged else "[green]ok[/]" if row.holds else "[red]✗[/]"
        table.add_row(row.what, row.figure, row.budget, row.best_peer, verdict + (" ~" if row.noisy else ""))
    console.print(table)
    if any(row.noisy for row in rows):
        console.print(f"~ others used more than {machine.NOISE_CORES} cores during every run of this figure")
    for error in errors:
        console.print(f"[red]wrong:[/] {error}", soft_wrap=True)


if __name__ == "__main__":
    with machine.leaving_nothing():
        sys.exit(main())

"""The runs that handlers wrote down."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Run:
    """One handler's run of one attempt; times in ns of the boot clock."""

    task_id: str
    attempt: int
    pid: int
    start: int
    last: int
    """When it was last seen to run."""
    ended: bool = False
    """Its handler was left, by return or exception."""


def read(folder: Path) -> dict[str, list[Run]]:
    """Runs by task id, in the order of their starts."""
    found: dict[str, list[Run]] = defaultdict(list)
    for file in folder.iterdir():
        for run in _runs(file):
            found[run.task_id].append(run)
    for runs in found.values():
        runs.sort(key=lambda run: run.start)
    return found


def _runs(file: Path) -> list[Run]:
    """Runs of one process. The same attempt may run twice in it: handed back uncounted, claimed again."""
    runs: list[Run] = []
    open_runs: dict[tuple[str, int], Run] = {}
    whole, _, _ = file.read_text().rpartition("\n")  # the last line may be torn by the kill
    for line in whole.splitlines():
        word, task_id, number, at = line.split()
        key = task_id, int(number)
        if word == "start":
            open_runs[key] = Run(task_id, int(number), int(file.name), int(at), int(at))
            runs.append(open_runs[key])
        else:
            open_runs[key].last = int(at)
            open_runs[key].ended |= word == "end"
    return runs


def overlaps(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Pairs of runs of one task of which the later began before the earlier was last seen to run."""
    found = []
    latest: Run | None = None
    for run in runs:
        if latest is not None and run.start < latest.last:
            found.append((latest, run))
        latest = run if latest is None or run.last > latest.last else latest
    return found

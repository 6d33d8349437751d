"""The two pictures of docs/observe.md, drawn from runs of their own: `python -m loadtest.pictures [FOLDER]`.

Starved: four children on one CPU. Bound by garbage collection: a child with a CPU, and a task that has much to collect.
It takes a minute and a half.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx

from loadtest.charts import Chart, svg
from loadtest.machine import leaving_nothing

ROOT = Path(__file__).parents[1]
LASTS_S = 30
IDLE_S = 5
"""Before the first task, so that the picture shows what it changes."""

WINDOW_S = 4.0
"""Rates are over so long: children are looked at four times a second, and CPU time comes in ticks."""

CURVES = {
    "CPU used": "taskgate_cpu_seconds_total",
    "waited for a CPU": "taskgate_run_queue_wait_seconds_total",
    "garbage collection": "taskgate_gc_pause_seconds_total",
}


class Scene(NamedTuple):
    name: str
    title: str
    task_type: str
    children: int
    cpus: int


SCENES = (
    Scene("starved", "Starved: seconds of the tasks in each second", "pictures.compute", 4, 1),
    Scene("garbage", "Bound by garbage collection: seconds of the tasks in each second", "pictures.garbage", 1, 2),
)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        with tempfile.TemporaryDirectory(prefix="taskgate-pictures-") as place:
            readings = list(_watched(scene, Path(place)))
        lines = {
            said: _rates([(at_s, found.get(name, 0.0)) for at_s, found in readings]) for said, name in CURVES.items()
        }
        # By itself a file needs what a page has: a namespace and a background.
        head = '<svg xmlns="http://www.w3.org/2000/svg" style="background:#fff" '
        picture = svg(Chart(scene.title, lines), LASTS_S).replace("<svg ", head, 1)
        (folder / f"{scene.name}.svg").write_text(f"{picture}\n")
        print(f"{folder / scene.name}.svg:", {said: round(line[-1][1], 2) for said, line in lines.items()})


def _watched(scene: Scene, place: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """Twice a second what its sync children have used until then."""
    log = place / "log"
    cpus = sorted(os.sched_getaffinity(0))[: scene.cpus]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKGATE_")} | {
        "PYTHONPATH": str(ROOT),
        "TASKGATE_DATA_DIR": str(place / "data"),
        "TASKGATE_PORT": "0",
        "TASKGATE_WORKER_HEALTH_PORT": "0",
        "TASKGATE_WORKER_PROCESSES": str(scene.children),
        "TASKGATE_ASYNC_PROCESSES": "0",
        "TASKGATE_HANDLERS": "loadtest.picture_jobs",
        "TASKGATE_LOG_FORMAT": "json",
    }
    command = ["taskset", "--cpu-list", ",".join(map(str, cpus)), sys.executable, "-m", "taskgate", "up"]
    with log.open("wb") as output:
        service = subprocess.Popen(command, env=environment, cwd=place, stdout=output, stderr=output)
    try:
        gateway = _said(log, r"ready at (http://\S+)")
        supervisor = _said(
            log,
            r'"url":"(http://[^"]+)"[^\n]*"worker health listens"|worker health listens[^\n]*?"url":"(http://[^"]+)"',
        )
        with httpx.Client(trust_env=False, timeout=30) as http:
            began = time.monotonic()
            busy = False
            while (now := time.monotonic() - began) < LASTS_S:
                if now >= IDLE_S and not busy:
                    busy = True
                    for _ in range(scene.children):
                        body = {"type": scene.task_type, "payload": {"seconds": LASTS_S}}
                        http.post(f"{gateway}/tasks", json=body).raise_for_status()
                yield now, _of_sync_children(http.get(f"{supervisor}/metrics").text)
                time.sleep(0.5)
    finally:
        for _ in range(2):  # what runs has no end of its own
            service.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        service.wait()


def _of_sync_children(text: str) -> dict[str, float]:
    found = re.findall(r'^(\w+)\{process="sync"\} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def _said(log: Path, pattern: str, *, within_s: float = 60) -> str:
    deadline = time.monotonic() + within_s
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(log.read_text(errors="replace"))
        time.sleep(0.1)
    return str(next(filter(None, found.groups())))


def _rates(totals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    rates = []
    for at_s, total in totals:
        before = [each for each in totals if each[0] <= at_s - WINDOW_S]
        if before:
            rates.append((at_s, (total - before[-1][1]) / (at_s - before[-1][0])))
    return rates


if __name__ == "__main__":
    with leaving_nothing():
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")

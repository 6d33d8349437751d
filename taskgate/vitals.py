"""How well a process itself is: its CPU time, waits for a CPU, collector's pauses, memory, and how late its loop is."""

import asyncio
import contextlib
import gc
import os
import resource
import time
from pathlib import Path
from typing import Any

from taskgate.contract import errors
from taskgate.metrics import LATENESS_BUCKETS, Counter, Family, Gauge, Histogram

LOOK_EVERY_S = 0.5
_PAGE_BYTES = resource.getpagesize()


class Vitals:
    """Of this process and, under other names, of those it answers for."""

    def __init__(self, process: str) -> None:
        self._process = process
        self.cpu = Counter("taskgate_cpu_seconds_total", "CPU time used.", "process")
        self.waited = Counter(
            "taskgate_run_queue_wait_seconds_total",
            "Time that threads which could run had no CPU; of gateway and supervisor their event loop's alone.",
            "process",
        )
        self.paused = Counter(
            "taskgate_gc_pause_seconds_total",
            "Time for which the garbage collector stopped everything.",
            "process",
        )
        self.memory = Gauge("taskgate_resident_memory_bytes", "Resident memory.", "process")
        self.files = Gauge("taskgate_open_files", "Open descriptors.", "process")
        self.lag = Histogram(
            "taskgate_loop_lag_seconds",
            "How late the event loop came to what was due, looked at twice a second.",
            "process",
            buckets=LATENESS_BUCKETS,
        )
        self.faults = Counter(
            "taskgate_redis_errors_total", "Calls of Redis that failed, by what is known.", "error"
        ).known("unavailable", "outcome_unknown")
        self.families: list[Family] = [each for each in vars(self).values() if isinstance(each, Family)]
        self.lag_s = 0.0
        """As it was seen last."""
        self._began = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        gc.callbacks.append(self._collects)
        try:
            while True:
                due = time.monotonic() + LOOK_EVERY_S
                await asyncio.sleep(LOOK_EVERY_S)
                self.lag_s = max(0.0, time.monotonic() - due)
                self.lag.observe(self.lag_s, self._process)
        finally:
            gc.callbacks.remove(self._collects)

    def look(self) -> None:
        """What the kernel counts anyway, when somebody asks."""
        times = os.times()
        self.cpu.values[self._process,] = times.user + times.system
        self.paused.add(self._process, by=0)
        with contextlib.suppress(OSError, ValueError):  # a kernel that does not count
            self.waited.values[self._process,] = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
        for error, count in errors.FAULTS.items():
            self.faults.values[error,] = count
        with contextlib.suppress(OSError):
            self.memory.set(self._process, to=int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES)
            self.files.set(self._process, to=len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - names are enough

    def _collects(self, phase: str, _: dict[str, Any]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began = now
        else:
            self.paused.add(self._process, by=now - self._began)

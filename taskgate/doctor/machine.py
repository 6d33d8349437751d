"""Checks of this machine: system, kernel, limits, disk."""

import platform as stdlib_platform
import sys
from collections.abc import Iterator
from pathlib import Path

from taskgate import platform, sizing
from taskgate.doctor.finding import Finding, judge, mib
from taskgate.doctor.handlers import declared
from taskgate.footprint import shortage, waiting_bytes, worst_case_bytes
from taskgate.settings import Settings, cpus

_GOOD_DESCRIPTORS = 8192
"""5,000 event streams and as many requests as come beside them."""
_CHILD_BYTES = 96 * 1024**2
_GATEWAY_BYTES = 128 * 1024**2
_SUPERVISOR_BYTES = 96 * 1024**2
_LEAST_DISK_BYTES = 64 * 1024**2


def machine(settings: Settings) -> list[Finding]:
    handlers = declared(settings.handlers)
    return [
        *_system(),
        *_descriptors(settings),
        *_memory(settings),
        handlers.loaded,
        *_worst_case(settings, handlers.limits_mb),
        *_processors(settings),
    ]


def _system() -> Iterator[Finding]:
    yield judge(
        "system",
        f"{stdlib_platform.system()} {stdlib_platform.release()} {stdlib_platform.machine()}",
        fail=not platform.is_linux(),
        advice="Taskgate runs on Linux: use a container, or WSL2 on Windows",
    )
    yield judge(
        "python",
        stdlib_platform.python_version(),
        fail=sys.version_info < (3, 11),
        advice="install Python 3.11 or newer",
    )
    missing = platform.missing_features()
    yield judge(
        "kernel features",
        f"missing: {', '.join(missing)}" if missing else "pidfd, memfd",
        fail=bool(missing),
        advice="needs Linux 5.4 or newer, and a sandbox (seccomp profile) that allows pidfd_open and memfd_create",
    )
    seen = platform.has_run_queue_times()
    yield judge(
        "run-queue times",
        "/proc/<pid>/schedstat" if seen else "no /proc/<pid>/schedstat",
        warn=not seen,
        advice="health will not say `starved`: needs a kernel with CONFIG_SCHED_INFO, and /proc mounted",
    )


def _descriptors(settings: Settings) -> Iterator[Finding]:
    limit = platform.open_files_limit()
    needed = max(sizing.supervisor_descriptors(settings), sizing.async_child_descriptors(settings))
    room = max(0, limit - sizing.OWN_DESCRIPTORS)
    yield judge(
        "open files",
        f"{limit:,} a process; {needed:,} needed, the gateway has room for about {room:,} connections and streams",
        fail=limit < needed,
        warn=limit < _GOOD_DESCRIPTORS,
        advice=f"ulimit -n {max(65536, needed)} (systemd: LimitNOFILE=, compose: ulimits.nofile)",
    )


def _memory(settings: Settings) -> Iterator[Finding]:
    limit = platform.memory_bytes()
    if limit is None:
        yield judge("memory", "unknown", warn=True, advice="mount /proc, so that limits can be read")
        return
    children = settings.worker_processes + settings.async_processes + 1
    needed = children * _CHILD_BYTES + _SUPERVISOR_BYTES + settings.gateway_processes * _GATEWAY_BYTES
    kept = 0
    if settings.redis_url is None:
        needed += waiting_bytes(settings)
        kept = settings.retention_bytes
    yield judge(
        "memory",
        f"{mib(limit)}; about {mib(needed)} for these settings and up to {mib(kept)} of finished tasks, without what "
        "handlers use",
        fail=limit < needed / 2,
        warn=limit < needed + kept,
        advice="give it more (container: memory limit), or lower --worker-processes, --queue-limit-bytes (or "
        "limit_bytes in the policy) or --retention-bytes",
    )


def _worst_case(settings: Settings, limits_mb: list[int | None]) -> Iterator[Finding]:
    available = platform.memory_bytes()
    if available is None:
        return
    missing = shortage(settings, limits_mb, available)
    unbounded = "" if all(limits_mb) else ", and what types without a memory_limit_mb take"
    yield judge(
        "worst case",
        f"{mib(worst_case_bytes(settings, limits_mb))} for a supervisor and its children{unbounded}",
        fail=bool(missing) and settings.strict,
        warn=bool(missing),
        advice=missing,
    )


def _processors(settings: Settings) -> Iterator[Finding]:
    usable, quota = cpus(), platform.cpu_quota()
    granted = min(float(usable), quota) if quota is not None else float(usable)
    yield judge(
        "processors",
        f"{granted:g} for {settings.worker_processes} worker and {settings.gateway_processes} gateway processes",
        warn=settings.worker_processes > 2 * granted,
        advice=f"tasks that compute will starve each other: --worker-processes {max(1, int(granted))}, "
        "twice that when tasks mostly wait",
    )


def disk(folder: Path, *, most_bytes: int) -> Finding:
    """`most_bytes`: what waits and what finished tasks keep, when there is most of both."""
    free, good = platform.free_bytes(folder), 4 * most_bytes
    return judge(
        "disk",
        f"{mib(free)} free for {folder.absolute()}",
        fail=free < _LEAST_DISK_BYTES,
        warn=free < good,
        advice=f"a full disk stops Valkey: free some ({mib(good)} hold what the limits allow, and a rewrite), or set "
        "--data-dir",
    )

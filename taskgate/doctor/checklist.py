"""The production checklist of docs/operations.md, as far as it can be seen from here; the rest says who must look."""

from collections.abc import Iterator

from taskgate import sizing
from taskgate.doctor.finding import Finding, Level, judge
from taskgate.doctor.handlers import declared
from taskgate.network import is_loopback
from taskgate.settings import Settings

_SHOWN = 5
_SHORT_KEY = 24


def checklist(settings: Settings) -> list[Finding]:
    return [
        *_timeouts(settings),
        _isolation(settings),
        _limits(settings),
        _stop(settings),
        _database(settings),
        _logs(settings),
        _access(settings),
        _alerts(settings),
        Finding(
            Level.LOOK,
            "backup",
            "copies of the append-only file, and whether one was ever restored",
            "run deploy/backup/backup.sh by a timer, and restore one into another server",
        ),
    ]


def _timeouts(settings: Settings) -> Iterator[Finding]:
    """An hour is the default, which hardly anybody means."""
    from taskgate.handlers import Options  # the gateway, which loads this module, knows nothing of handlers

    types = declared(settings.handlers).types
    longest = max((each.timeout_s for each in types), default=0)
    default_s = Options().timeout_s
    unset = [each.type for each in types if each.timeout_s == default_s]
    if types:
        yield judge(
            "timeouts",
            f"{longest:g} s at most; {len(unset)} of {len(types)} types have the default of {default_s:g} s",
            warn=bool(unset),
            advice=f"a hang keeps a slot for that long: timeout_s for {_some(unset)}; and what waits for others gets "
            "attempt.remaining_s as its own limit",
        )


def _isolation(settings: Settings) -> Finding:
    kinds = [each.kind for each in declared(settings.handlers).types]
    shared = kinds.count("async")
    return Finding(
        Level.OK,
        "crash isolation",
        f"{kinds.count('sync')} sync types run in processes of their own, {shared} async ones share "
        f"{settings.async_processes} of {settings.async_slots} slots",
    )


def _limits(settings: Settings) -> Finding:
    sync = [each for each in declared(settings.handlers).types if each.kind == "sync"]
    free = [each.type for each in sync if each.memory_limit_mb is None]
    return judge(
        "resource limits",
        f"{len(sync) - len(free)} of {len(sync)} sync types have a memory_limit_mb",
        warn=bool(free),
        advice=f"what leaks takes the machine along: memory_limit_mb for {_some(free)}; or the memory limit of a "
        "container for all of them",
    )


def _stop(settings: Settings) -> Finding:
    return Finding(
        Level.LOOK,
        "graceful stop",
        f"within {settings.grace_s:g} s; soft signals {settings.soft_stop_s:g} s before that",
        f"who stops it must wait longer, {settings.grace_s + 10:g} s (systemd: TimeoutStopSec=, compose: "
        "stop_grace_period, Kubernetes: terminationGracePeriodSeconds)",
    )


def _database(settings: Settings) -> Finding:
    sync, asynchronous = sizing.children(settings)
    return Finding(
        Level.LOOK,
        "database connections",
        f"{sizing.tasks_at_a_time(settings):,} of this host when each task opens one; of pools that processes open at "
        f"their start, {sync} × the size of those of sync types + {asynchronous} × that of async ones",
        "max_connections of each database that handlers use must hold that for all hosts together",
    )


def _logs(settings: Settings) -> Finding:
    quiet = settings.log_level in ("warning", "error")
    return judge(
        "logs",
        f"{settings.log_format}, from level {settings.log_level} on; each line about a task has its task_id",
        warn=quiet or settings.log_format == "console",
        advice="a line for each finished attempt is level info: --log-level info"
        if quiet
        else "lines for people are hard to search by task_id: --log-format json",
    )


def _access(settings: Settings) -> Finding:
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    short = 0 < len(key) < _SHORT_KEY
    return judge(
        "access",
        f"{settings.host}:{settings.port}, " + ("without a key", "with a key", "with a short key")[bool(key) + short],
        warn=short or (not key and not is_loopback(settings.host)),
        advice="a key of fewer than 24 characters can be guessed: openssl rand -base64 33"
        if short
        else "whoever reaches it may submit, read and cancel: set TASKGATE_API_KEY (or _FILE), or see to it that "
        "nobody else reaches it",
    )


def _alerts(settings: Settings) -> Finding:
    port = settings.worker_health_port
    return Finding(
        Level.LOOK,
        "alerts",
        "metrics of the gateway" + (f" and, at port {port}, of the supervisor" if port else ", none of supervisors"),
        "load deploy/prometheus/taskgate.rules.yml and see one alert arrive"
        + ("" if port else "; it needs TASKGATE_WORKER_HEALTH_PORT"),
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else "")

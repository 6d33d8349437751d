"""`make loadtest`: simulated users against a service of its own, or one that `--url` names; reports, and a verdict."""

import argparse
import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from loadtest import bodies, charts, machine, shapes
from loadtest.arguments import above_zero, at_least_one
from loadtest.samples import Sampler, get_json
from taskgate.listening import free_port

DEFAULT_S = {"stages": 80, "spike": 60, "soak": 3600}
JUDGED_FROM_S = 60
"""Shorter runs judge correctness alone: their few seconds are those in which everything starts."""
P99_MS = 500
AGE_MS = 2000
"""Five times the budget of 400 ms: the users, all in one process, are late themselves when they are many."""

_TYPE = "webhook"
_STOP_S = 90
"""Users may finish what they do: longer than they wait for any task."""

_LEAVES_S = 60
"""Longer than the grace that it has."""


@dataclass
class Target:
    """The service under load."""

    url: str
    key: str
    groups: list[machine.Group]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    seconds = DEFAULT_S[options.shape] if options.seconds is None else options.seconds
    stages = shapes.scaled(shapes.SHAPES[options.shape], seconds=seconds, users=options.users)
    try:
        bodies.load(options.bodies)  # the users would find out, when everything has started
    except OSError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    print(f"loadtest: webhook bodies: {options.bodies or 'made ones'}")
    folder = options.results / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    try:
        with _target(options.url, shapes.peak(stages), folder) as target:
            _wait(target)
            code = _under_load(target, stages, folder, options)
            _stop(target)
    except OSError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        code = 1
    log = folder / "up.log"
    if code and log.exists():
        print(f"loadtest: the service's log ends:\n{log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
    return code


def _under_load(target: Target, stages: Sequence[shapes.Stage], folder: Path, options: argparse.Namespace) -> int:
    users = _users(target, stages, folder, options)
    within_s = shapes.length_s(stages) + 2 * _STOP_S + 120
    with Sampler(target.url, target.key, [*target.groups, users]) as sampler:
        try:
            code = users.wait(within_s)
        except subprocess.TimeoutExpired:
            raise OSError(f"the users have not ended after {within_s:.0f} s") from None
        finally:
            users.stop()
    print((folder / "users.log").read_text(), end="")
    journal_file = folder / "users.json"
    if not journal_file.exists():
        raise OSError(f"the users left no report (exit code {code})")
    journal = json.loads(journal_file.read_text())
    (folder / "samples.json").write_text(json.dumps({"machine": machine.facts(), "samples": sampler.rows()}))
    facts = [journal["summary"], _figures(journal["totals"]), *(f"broken: {line}" for line in journal["broken"])]
    title = f"Load test: {options.shape}, {shapes.peak(stages)} users, {shapes.length_s(stages):.0f} s"
    (folder / "charts.html").write_text(charts.page(title, facts, charts.of_run(journal["rows"], sampler.rows())))
    print(f"loadtest: {_figures(journal['totals'])}")
    print(f"loadtest: charts {folder / 'charts.html'}, locust's report {folder / 'locust.html'}")
    return code


def _figures(totals: dict[str, float]) -> str:
    names = {"accepted": "202", "status": "status", "age": "event age"}
    parts = [
        f"{called} p50 {totals[f'{name}_p50_ms']:.0f}, p99 {totals[f'{name}_p99_ms']:.0f} ms"
        for name, called in names.items()
        if f"{name}_p99_ms" in totals
    ]
    return "; ".join(parts) or "nothing was measured"


@contextlib.contextmanager
def _target(url: str | None, peak: int, folder: Path) -> Iterator[Target]:
    if url is not None:
        yield Target(url.rstrip("/"), os.environ.get("TASKGATE_API_KEY", ""), [])
        return
    port, key = free_port(), secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="loadtest-") as data:
        argv = [sys.executable, "-m", "taskgate", "up"]
        environ = _settings(port, key, peak, data)
        service = machine.Group(argv, environ=environ, log=folder / "up.log")
        try:
            yield Target(f"http://127.0.0.1:{port}", key, [service])
        finally:
            service.stop(grace_s=_LEAVES_S)


def _settings(port: int, key: str, peak: int, data: str) -> dict[str, str]:
    """With less room and fewer slots than the users could use, so that some are refused and must come again."""
    return machine.clean_environ(
        TASKGATE_PORT=str(port),
        TASKGATE_API_KEY=key,
        TASKGATE_DATA_DIR=f"{data}/data",
        TASKGATE_HANDLERS="loadtest.handlers",
        TASKGATE_QUEUE_LIMIT_TASKS=str(max(5, peak // 5)),
        TASKGATE_ASYNC_SLOTS=str(max(2, peak // 10)),
        TASKGATE_GRACE_S="10",
    )


def _users(target: Target, stages: Sequence[shapes.Stage], folder: Path, options: argparse.Namespace) -> machine.Group:
    """Locust, whose exit code is the ledger's."""
    argv = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    argv += ["--host", target.url, "--html", str(folder / "locust.html")]
    argv += ["--stop-timeout", str(_STOP_S), "--loglevel", "WARNING"]
    judged = shapes.length_s(stages) >= JUDGED_FROM_S
    environ = machine.clean_environ(
        LOADTEST_SHAPE=json.dumps([astuple(stage) for stage in stages]),
        LOADTEST_API_KEY=target.key,
        LOADTEST_JOURNAL=str(folder / "users.json"),
        LOADTEST_P99_MS=str(options.p99_ms if judged else 0),
        LOADTEST_AGE_MS=str(options.age_ms if judged else 0),
    )
    environ[bodies.VARIABLE] = "" if options.bodies is None else str(options.bodies.resolve())
    return machine.Group(argv, environ=environ, log=folder / "users.log")


def _stop(target: Target) -> None:
    """A service of ours must also end well.

    Raises:
        OSError: it does not.
    """
    for service in target.groups:
        service.stop(grace_s=_LEAVES_S)
        if service.exit_code:
            raise OSError(f"the service ended with {service.exit_code}")


def _wait(target: Target, *, within_s: float = 60) -> None:
    """Until the service is ready and serves the users' type.

    Raises:
        OSError: it is not, in that time.
    """
    deadline = time.monotonic() + within_s
    seen: object = None
    told = bool(target.groups)
    while time.monotonic() < deadline and all(group.exit_code is None for group in target.groups):
        try:
            get_json(f"{target.url}/readyz", target.key)
            types = get_json(f"{target.url}/task-types", target.key)["items"]
            seen = served = [each["type"] for each in types if each["served"]]
            if _TYPE in served:
                return
        except (OSError, http.client.HTTPException, ValueError) as error:
            seen = error
        if not told:  # one that is said to run already
            print(f"loadtest: waits for {within_s:g} s: {_lacks(seen)}", flush=True)
            told = True
        time.sleep(0.1)
    raise OSError(_lacks(seen))


def _lacks(seen: object) -> str:
    if isinstance(seen, list):
        return f"no worker serves {_TYPE} (TASKGATE_HANDLERS=loadtest.handlers), only {', '.join(seen) or 'nothing'}"
    return f"the service is not ready: {seen!r}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.run", description=__doc__)
    parser.add_argument("--shape", choices=shapes.SHAPES, default="stages")
    parser.add_argument("--users", type=at_least_one, help="at the peak")
    parser.add_argument("--seconds", type=above_zero, help=f"the whole shape in so many (default: {DEFAULT_S})")
    parser.add_argument(
        "--bodies", type=Path, default=_fixtures(), help=f"folder of webhook bodies ({bodies.VARIABLE}; else made ones)"
    )
    parser.add_argument("--url", help="a service that runs already, with loadtest.handlers; key: TASKGATE_API_KEY")
    parser.add_argument("--p99-ms", type=float, default=P99_MS, help="limit of the 202s' p99 (%(default)s)")
    parser.add_argument("--age-ms", type=float, default=AGE_MS, help="limit of the events' age, p99 (%(default)s)")
    parser.add_argument("--results", type=Path, default=machine.ROOT / "loadtest" / "results")
    return parser


def _fixtures() -> Path | None:
    """What the environment names, if it is there: it is set for whole machines, not for a run."""
    folder = Path(os.environ.get(bodies.VARIABLE) or os.devnull)
    return folder if folder.is_dir() else None


if __name__ == "__main__":
    with machine.leaving_nothing():
        sys.exit(main())

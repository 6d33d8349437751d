"""`make loadtest`: simulated users against a service of its own, bounded in users, tasks and time."""

import argparse
import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest import machine


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder:
        port = machine.free_port()
        service = machine.Group(
            [sys.executable, "-m", "taskgate", "up"], environ=_settings(port, folder), log=Path(folder) / "up.log"
        )
        try:
            _wait(service, port)
            code = _users(port, options)
        except OSError as error:
            print(f"loadtest: {error}", file=sys.stderr)
            code = 1
        finally:
            service.stop(grace_s=20)
        if service.exit_code or code:
            print(f"loadtest: the service ended with {service.exit_code}; its log ends:", file=sys.stderr)
            print(service.log.read_text(errors="replace")[-4000:], file=sys.stderr)
        return code or abs(service.exit_code or 0)


def _settings(port: int, folder: str) -> dict[str, str]:
    """A short queue, so that some users are refused and must come again."""
    return machine.clean_environ(
        TASKGATE_PORT=str(port),
        TASKGATE_DATA_DIR=f"{folder}/data",
        TASKGATE_HANDLERS="loadtest.handlers",
        TASKGATE_QUEUE_LIMIT_TASKS="10",
        TASKGATE_ASYNC_SLOTS="4",
        TASKGATE_GRACE_S="10",
    )


def _users(port: int, options: argparse.Namespace) -> int:
    """Run locust; its exit code is the ledger's."""
    argv = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    argv += [
        "--host",
        f"http://127.0.0.1:{port}",
        "--users",
        str(options.users),
        "--spawn-rate",
        str(max(1, options.users // 4)),
    ]
    argv += ["--run-time", f"{options.seconds}s", "--stop-timeout", "30", "--loglevel", "WARNING"]
    environ = machine.clean_environ(LOADTEST_TASKS=str(options.tasks))
    done = subprocess.run(argv, cwd=machine.ROOT, env=environ, timeout=options.seconds + 180, check=False)
    return done.returncode


def _wait(service: machine.Group, port: int, *, within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    seen: object = None
    while time.monotonic() < deadline and service.exit_code is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            seen = answer.read()
            if answer.status == 200:
                return
        except (OSError, http.client.HTTPException) as error:
            seen = error
        finally:
            connection.close()
        time.sleep(0.1)
    raise OSError(f"the service is not ready: {seen!r}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.run", description=__doc__)
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=1000, help="tasks submitted in all, at most")
    return parser


if __name__ == "__main__":
    sys.exit(main())

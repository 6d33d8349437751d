"""The command line: service commands start processes, client commands speak HTTP to a running service."""

import io
import sys


def main() -> None:
    """Entry of `taskgate` and `python -m taskgate`."""
    from taskgate.cli.app import app
    from taskgate.cli.text import ExitCode

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what a terminal cannot show is no reason to end
    try:
        app(prog_name="taskgate")
    except Exception:  # noqa: BLE001 - whatever it is, its exit code must not mean a task's end
        import traceback

        traceback.print_exc()
        sys.exit(ExitCode.CRASHED)

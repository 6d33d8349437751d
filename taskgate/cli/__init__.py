"""The command line: service commands start processes, client commands speak HTTP to a running service."""


def main() -> None:
    """Entry of `taskgate` and `python -m taskgate`."""
    from taskgate.cli.app import app

    app(prog_name="taskgate")

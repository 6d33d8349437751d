"""`python -m taskgate.demo`: exit code 0 only if every expectation held."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from taskgate.demo.play import Demo

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m taskgate.demo", description="A whole service, at work, checked.")
    parser.add_argument("--short", action="store_true", help="less work for the same tasks")
    parser.add_argument("--plain", action="store_true", help="lines instead of bars, also on a terminal")
    parser.add_argument("--files", type=Path, help="folder for the files that are made (default: a temporary one)")
    parser.add_argument("--url", help="work a service that runs already (with TASKGATE_API_KEY; kills nobody)")
    options = parser.parse_args()
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    demo = Demo(
        short=options.short,
        plain=options.plain,
        files=options.files,
        url=options.url,
        api_key=os.environ.get("TASKGATE_API_KEY", ""),
    )
    sys.exit(asyncio.run(_run(demo)))


async def _run(demo: Demo) -> int:
    stopped_by: list[signal.Signals] = []
    performance = asyncio.create_task(demo.run())

    def stop(number: signal.Signals) -> None:
        stopped_by.append(number)
        demo.interrupt(performance)

    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        return 0 if await performance else 1
    return 128 + stopped_by[0]


main()

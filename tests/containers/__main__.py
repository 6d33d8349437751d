"""`python -m tests.containers`: exit code 0 only if everything held. ARGS="--stream-seconds 30" for a shorter run."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.containers import acts, images
from tests.containers.boxes import FILES, IMAGE, Boxes, build


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.containers", description=__doc__)
    parser.add_argument("--stream-seconds", type=float, default=300, help="how long the stream has to live")
    options = parser.parse_args()
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    build(IMAGE)
    say(images.size())
    with tempfile.TemporaryDirectory(prefix="taskgate-containers-") as folder, Boxes().up(Path(folder)) as boxes:
        say(f"two gateways, three workers, Valkey and nginx are healthy at {boxes.url}; NOFILE={FILES}")
        asyncio.run(_run(boxes, say, stream_s=options.stream_seconds))
    say("all of it held")


async def _run(boxes: Boxes, say: acts.Say, *, stream_s: float) -> None:
    await acts.locked(boxes, say)
    async with asyncio.TaskGroup() as group:
        group.create_task(acts.stream(boxes, say, seconds=stream_s))
        await acts.demo(boxes, say)
        # Threads with loops of their own: docker's commands hold them up, and would make the stream's client late.
        await asyncio.to_thread(asyncio.run, images.alone(boxes, say))
    await acts.killed(boxes, say)
    await acts.stopped(boxes, say)
    await acts.restored(boxes, say)
    await acts.replaced(boxes, say)
    await images.derived(boxes, say)


try:
    main()
except (AssertionError, RuntimeError, ExceptionGroup) as error:
    causes = error.exceptions if isinstance(error, ExceptionGroup) else [error]
    sys.exit("\n".join(f"did not hold: {cause}" for cause in causes))

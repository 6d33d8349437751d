"""`make chaos`: run, watch, judge. Exit code 0: every promise was kept."""

import argparse
import asyncio
import contextlib
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.arguments import above_zero, at_least_one
from loadtest.chaos import processes, stamps, verdict
from loadtest.chaos.acts import Chaos
from loadtest.chaos.site import Site
from loadtest.chaos.users import Users

TELL_EVERY_S = 10.0
HEAL_WITHIN_S = 180.0
"""After the last fault every task must have ended by then, on a machine that is busy with other things too."""
EVERY_S = (0.2, 1.2)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    processes.adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix=f"taskgate-chaos-{options.seed}-"))
    print(f"chaos: {options.minutes:g} minutes, seed {options.seed}, evidence in {folder}", flush=True)
    problems = asyncio.run(_run(options, folder))
    for line in problems[:50]:
        print(f"chaos: BROKEN {line}")
    if len(problems) > 50:
        print(f"chaos: and {len(problems) - 50} more")
    if problems:
        (folder / "verdict.txt").write_text("\n".join(problems) + "\n")
        print(f"chaos: {len(problems)} promises broken; seed {options.seed}, evidence kept in {folder}")
        return 1
    if not options.keep:
        shutil.rmtree(folder)
    print(f"chaos: every promise was kept; seed {options.seed}")
    return 0


async def _run(options: argparse.Namespace, folder: Path) -> list[str]:
    site = Site(folder, random.Random(options.seed))
    users = Users(site.ports, random.Random(options.seed + 1))
    chaos = Chaos(site, random.Random(options.seed + 2), every_s=EVERY_S)
    keeper = asyncio.ensure_future(site.run())
    working = asyncio.ensure_future(asyncio.sleep(0))
    try:
        await site.start()
        working = asyncio.ensure_future(users.run(options.users))
        await _disturb(chaos, users, seconds=options.minutes * 60)
        print(f"chaos: the last fault is over; {users.ledger.summary()}", flush=True)
        problems = await _heal(site, users, working)
        await site.stop()
        found = stamps.read(site.stamps)
        broken, counts = await verdict.judge(site.client, site.store, users.ledger, found)
        problems += [*site.problems(), *broken]
        print(f"chaos: {counts}")
        print("chaos: " + ", ".join(f"{number} {name}" for name, number in sorted(chaos.counts.items())))
    finally:
        for each in (working, keeper):
            each.cancel()
        await asyncio.gather(working, keeper, return_exceptions=True)
        users.ledger.write(folder / "ledger.jsonl")
        await site.close()
    return problems


async def _disturb(chaos: Chaos, users: Users, *, seconds: float) -> None:
    """Act at random for that long, or until somebody wants it to end."""
    acting = asyncio.ensure_future(chaos.run())
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    begun = time.monotonic()
    while not stop.is_set() and not acting.done() and (left_s := begun + seconds - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(TELL_EVERY_S, left_s)):
                await stop.wait()
        passed_s = time.monotonic() - begun
        print(f"chaos: {passed_s:4.0f} s, {users.ledger.summary()}, {chaos.counts.total()} faults", flush=True)
    chaos.stop()
    await acting


async def _heal(site: Site, users: Users, working: "asyncio.Future[None]") -> list[str]:
    """No fault any more: every user sees the end of its task, and every other task ends too."""
    users.stop()
    deadline = time.monotonic() + HEAL_WITHIN_S
    await asyncio.wait([working], timeout=HEAL_WITHIN_S)
    if not working.done():
        return [f"users wait {HEAL_WITHIN_S:g} s after the last fault: {users.ledger.summary()}"]
    working.result()
    await site.until_valkey_answers()
    while left := await verdict.unfinished(site.client, site.store):
        if time.monotonic() > deadline:
            return [f"{left} tasks have not ended {HEAL_WITHIN_S:g} s after the last fault"]
        await asyncio.sleep(0.2)
    return []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make chaos ARGS=…", description=__doc__)
    parser.add_argument("--minutes", type=above_zero, default=3.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--users", type=at_least_one, default=30, help="clients at the same time")
    parser.add_argument("--keep", action="store_true", help="keep the evidence of a good run too")
    return parser


if __name__ == "__main__":
    sys.exit(main())

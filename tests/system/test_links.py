"""The link to Redis freezes, breaks and loses answers: every task ends once, and no two attempts overlap."""

import asyncio
import random

import msgspec
import pytest

from tests.conftest import eventually
from tests.system.proxy import Proxy, proxy
from tests.system.rig import Rig
from tests.system.ticking import Ticking, boot_s

LEASE_S = 1.0
LONG = (pytest.mark.full, pytest.mark.timeout(400))
pytestmark = pytest.mark.timeout(200)


async def _freeze(link: Proxy, rng: random.Random) -> None:
    """Twice the lease, so that the other supervisor takes over."""
    link.freeze()
    await asyncio.sleep(2 * LEASE_S)
    link.thaw()


async def _hiccup(link: Proxy, rng: random.Random) -> None:
    link.freeze()
    await asyncio.sleep(rng.uniform(0.05, LEASE_S))
    link.thaw()


async def _cut(link: Proxy, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 5)):
        link.cut(reset=rng.random() < 0.5)
        await asyncio.sleep(rng.uniform(0, 0.1))


async def _swallow(link: Proxy, rng: random.Random) -> None:
    link.swallow()
    await asyncio.sleep(rng.uniform(0.05, 2 * LEASE_S))
    link.answer()


FAULTS = (_freeze, _swallow, _cut, _hiccup)


class Load:
    """Short tasks, sync and async, submitted until stopped."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.ids: list[str] = []
        self._rig = rig
        self._rng = rng
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    async def _run(self) -> None:
        self._stopping = False
        while not self._stopping:
            kind = self._rng.choice(("ticks", "aticks"))
            self.ids.append(await self._rig.submit(kind, {"ms": self._rng.randint(1, 400)}))
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=LONG)])
async def test_whatever_the_link_does_every_task_ends_once_and_no_attempts_overlap(rig: Rig, rounds: int) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    ticking = Ticking(rig, lease_s=LEASE_S)
    faults: list[str] = []
    async with proxy(rig.server.folder / "redis.sock") as link:
        behind = await rig.worker(TASKGATE_REDIS_URL=link.url)
        direct = await rig.worker()
        await rig.gateway()
        await ticking.until_whole(behind.pid, direct.pid)
        load = Load(rig, rng)
        for n in range(rounds):
            fault = FAULTS[n % len(FAULTS)]
            began = boot_s()
            await fault(link, rng)
            faults.append(f"{fault.__name__} {began:.3f} to {boot_s():.3f}")
            await asyncio.sleep(rng.uniform(0, LEASE_S))
        await load.stop()
        await _until_all_succeeded(rig, load.ids, within_s=120)
        await ticking.until_whole(behind.pid, direct.pid)

    assert behind.poll() is None
    broken = [said for task_id in load.ids if (said := await _broken(ticking, task_id))]
    told = "\n".join([f"seed {seed}, {len(load.ids)} tasks; boot clock in s", *faults, *broken[:5]])
    assert not broken, told


async def _broken(ticking: Ticking, task_id: str) -> str:
    """What of a task's history is not as promised, with all that is known of it; "": nothing.

    Each counted attempt ran once, but those that were lost with their supervisor: nobody can know whether they ran.
    """
    rig = ticking.rig
    [record] = await rig.store.read([task_id])
    assert record is not None
    attempts = ticking.attempts(task_id)
    ran = [each.attempt for each in attempts]
    told = [msgspec.json.decode(event.data) for event in await rig.store.events(task_id) if event.name == "status"]
    lost = {data["attempt"] for data in told if data.get("error", {}).get("kind") == "lost"}
    wrong = {
        f"is {record.status}": record.status != "succeeded",
        "attempts overlapped": ticking.overlap_ns(task_id) >= 0,
        "an attempt ran twice": len(ran) != len(set(ran)),
        "an attempt neither ran nor was lost": not set(range(1, record.attempt + 1)) - set(ran) <= lost,
        "an attempt ran and was not counted": not set(ran) <= set(range(1, record.attempt + 1)),
    }
    if not any(wrong.values()):
        return ""
    ticks = [f"{each.attempt} {each.first / 1e9:.3f} to {each.last / 1e9:.3f} in {each.pid}" for each in attempts]
    said = [line[:400] for line in (rig.folder / "worker.log").read_text().splitlines() if task_id in line]
    facts = ["; ".join(what for what, is_so in wrong.items() if is_so), f"ran: {ticks}", f"told: {told}", *said]
    return "\n  ".join([f"{task_id} {record.spec.type}", *facts])


async def _until_all_succeeded(rig: Rig, ids: list[str], *, within_s: float) -> None:
    async def left() -> list[tuple[str, str, int]]:
        records = zip(ids, await rig.store.read(ids), strict=True)
        return [
            (task_id, "gone", 0) if record is None else (task_id, record.status, record.attempt)
            for task_id, record in records
            if record is None or record.status != "succeeded"
        ]

    await eventually(left, lambda found: not found, within_s=within_s, every_s=0.2)

"""The link to Redis freezes, breaks and loses answers: every task ends once, and no two attempts overlap."""

import asyncio
import random

import msgspec
import pytest

from tests.conftest import eventually
from tests.system.proxy import Proxy, proxy
from tests.system.rig import Rig
from tests.system.ticking import Ticking

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
        link.cut()
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
    print(f"seed {seed}")
    rng = random.Random(seed)
    ticking = Ticking(rig, lease_s=LEASE_S)
    async with proxy(rig.server.folder / "redis.sock") as link:
        behind = await rig.worker(TASKGATE_REDIS_URL=link.url)
        direct = await rig.worker()
        await rig.gateway()
        await ticking.until_whole(behind.pid, direct.pid)
        load = Load(rig, rng)
        for n in range(rounds):
            await FAULTS[n % len(FAULTS)](link, rng)
            await asyncio.sleep(rng.uniform(0, LEASE_S))
        await load.stop()
        await eventually(lambda: _unfinished(rig, load.ids), lambda left: left == 0, within_s=90, every_s=0.2)
        await ticking.until_whole(behind.pid, direct.pid)

    assert behind.poll() is None
    lost = 0
    for task_id in load.ids:
        assert await ticking.status(task_id) == "succeeded"
        assert ticking.overlap_ns(task_id) < 0, (seed, task_id, ticking.attempts(task_id))
        lost += await _check_attempts(ticking, task_id)
    print(f"{len(load.ids)} tasks, {lost} attempts counted as lost whose claim had reached no supervisor")


async def _check_attempts(ticking: Ticking, task_id: str) -> int:
    """Each counted attempt ran once. How many did not: lost with their supervisor, when nobody can know whether."""
    rig = ticking.rig
    [record] = await rig.store.read([task_id])
    assert record is not None
    ran = [each.attempt for each in ticking.attempts(task_id)]
    assert len(ran) == len(set(ran)), (task_id, ran)
    silent = set(range(1, record.attempt + 1)) - set(ran)
    told = [msgspec.json.decode(event.data) for event in await rig.store.events(task_id) if event.name == "status"]
    reaped = {data["attempt"] for data in told if data.get("error", {}).get("kind") == "lost"}
    assert silent <= reaped, (task_id, ran, told)
    assert set(ran) <= set(range(1, record.attempt + 1)), (task_id, ran)
    return len(silent)


async def _unfinished(rig: Rig, ids: list[str]) -> int:
    return sum(record is None or record.status != "succeeded" for record in await rig.store.read(ids))

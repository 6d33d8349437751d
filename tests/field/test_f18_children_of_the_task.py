"""F18, children of the task: none outlives a timeout, a cancel or a stop; pools of processes work."""

import asyncio
import functools
import random
import signal

import pytest

from tests.conftest import eventually
from tests.system.death_rig import accept, ended, sleepers
from tests.system.rig import Rig, is_dead

HANDLERS = "tests.field.misbehaving,tests.system.death_jobs"
pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]


async def test_no_descendant_is_left_and_nobody_waits_for_its_pipes(rig: Rig) -> None:
    rig.settings |= {"TASKGATE_HANDLERS": HANDLERS, "TASKGATE_WORKER_PROCESSES": "6"}
    supervisor = await rig.worker(TASKGATE_GRACE_S="5")
    naps = [f"{random.randint(10**6, 10**7)}" for _ in range(6)]
    ids = []
    for n, nap in enumerate(naps):
        payload = {"s": nap, "own_session": n % 2 == 1}
        ids.append(await accept(rig, "starts_a_shell", payload, timeout_s=10 if n < 2 else 3600))
    for nap in naps:
        await eventually(functools.partial(_sleeping, nap), lambda pids: len(pids) >= 2, within_s=30)

    for task_id in ids[2:4]:
        await rig.store.cancel(task_id)
    assert [record.status for record in await ended(rig, *ids[:4])] == ["failed"] * 2 + ["canceled"] * 2
    for nap in naps[:4]:
        await eventually(functools.partial(_sleeping, nap), lambda pids: not pids, within_s=60)
    [pool] = await ended(rig, await accept(rig, "uses_a_pool", [-1, -2, -3]))
    assert pool.result == b"[1,2,3]"

    supervisor.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(supervisor.wait, 30) == 0
    for nap in naps[4:]:
        await eventually(functools.partial(_sleeping, nap), lambda pids: not pids, within_s=60)


async def _sleeping(nap: str) -> list[int]:
    return [pid for pid in sleepers(f"sleep {nap}") if not is_dead(pid)]

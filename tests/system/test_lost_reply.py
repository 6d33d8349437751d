"""A claim whose reply never reached the supervisor: its beats find the task, and it runs uncounted."""

import os
import signal

import pytest

from taskgate.contract.models import Served
from taskgate.contract.store import Store
from tests.system.rig import Rig


@pytest.mark.parametrize("partitions", [1, pytest.param(3, marks=pytest.mark.full)])
async def test_a_task_claimed_by_a_lost_reply_is_handed_back_and_runs(rig: Rig, partitions: int) -> None:
    rig.settings |= {"TASKGATE_LEASE_S": "2", "TASKGATE_PARTITIONS": str(partitions)}
    supervisor = await rig.worker()
    await rig.gateway()
    [worker] = await rig.store.workers()
    store = Store(rig.redis, partitions=partitions)
    os.kill(supervisor.pid, signal.SIGSTOP)
    task_id = await rig.submit("cpu", {"ms": 1})
    [claimed] = await store.claim(
        store.partition_of(task_id),
        worker.id,
        served=[Served("default", "cpu", "sync")],
        free_sync=1,
        free_async=0,
        lease_ms=2000,
    )
    os.kill(supervisor.pid, signal.SIGCONT)
    assert claimed.id == task_id

    ended = await rig.ended(task_id, within_s=60)
    assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
    assert len(rig.runs()) == 1

"""F17, the task swallows its own timeout: it is killed `KILL_AFTER_S` later, and whoever waits behind it runs."""

import pytest

from tests.system.death_rig import accept, ended, error, whole
from tests.system.rig import Rig
from workers.stops import KILL_AFTER_S

HANDLERS = "tests.field.misbehaving,tests.system.death_jobs"
pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]

TIMEOUT_S = 1.0


async def test_each_ends_as_timed_out_and_the_slots_come_back(rig: Rig) -> None:
    rig.settings |= {"TASKGATE_HANDLERS": HANDLERS, "TASKGATE_WORKER_PROCESSES": "2"}
    supervisor = await rig.worker()
    ways = ("except Exception", "except BaseException", "finally")
    ids = [await accept(rig, "swallows", way, timeout_s=TIMEOUT_S) for way in ways]
    ids.append(await accept(rig, "async.goes_on", timeout_s=TIMEOUT_S))
    echoes = [await accept(rig, "echo", n) for n in range(20)]

    records = await ended(rig, *ids, within_s=120)
    ended_ms = [record.finished_ms - record.started_ms for record in records]
    told = [error(record) for record in records]

    assert {one["kind"] for one in told} == {"timeout"}
    asked, *killed = told
    assert "signal" not in asked, "a Stopped is no Exception: the first one ends softly"
    assert [one["signal"] for one in killed] == ["SIGKILL"] * 3
    for ms in ended_ms:
        assert ms < 1000 * (TIMEOUT_S + KILL_AFTER_S + 10), ended_ms
    assert {record.status for record in await ended(rig, *echoes)} == {"succeeded"}
    await whole(rig, supervisor.pid, sync=2)

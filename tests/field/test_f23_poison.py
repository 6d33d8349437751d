"""F23, a poison pill that kills its worker: started `max_attempts` times, then a dead letter that says why."""

import asyncio
import itertools

import pytest

from taskgate.contract.models import Limits
from tests.conftest import dead_letters
from tests.system.death_rig import accept, ended, error, events, read
from tests.system.rig import FINAL, Rig

HANDLERS = "tests.field.misbehaving,tests.system.death_jobs"
HANDED_BACK = ("taken_back", "deadline", "unknown")
"""Uncounted: no child had begun it, which on a machine that stalls takes more than one claim."""
pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]


async def test_one_that_kills_its_process_group_ends_after_its_attempts(rig: Rig) -> None:
    rig.settings["TASKGATE_HANDLERS"] = HANDLERS
    await rig.worker()
    poison = await accept(rig, "kills_its_group", max_attempts=3)
    echoes = [await accept(rig, "echo", n, max_attempts=3) for n in range(100)]

    [dead] = await ended(rig, poison)
    assert (dead.status, dead.attempt, error(dead)["signal"]) == ("failed", 3, "SIGKILL")
    assert {record.status for record in await ended(rig, *echoes)} == {"succeeded"}
    starts = sorted(run.start for run in rig.runs() if run.task_id == poison)
    assert len(starts) == 3
    assert all(later > earlier for earlier, later in itertools.pairwise(starts))
    assert await dead_letters(rig.store) == [poison]

    await rig.store.redrive(poison, request_id="again", limits=Limits())
    [dead] = await ended(rig, poison)
    assert (dead.status, dead.attempt) == ("failed", 3)
    assert len([run for run in rig.runs() if run.task_id == poison]) == 6
    past = (await rig.store.history(poison)).attempts
    assert [(one.attempt, one.redriven_ms > 0) for one in past] == [
        (1, False),
        (2, False),
        (3, False),
        (1, True),
        (2, True),
    ]
    assert all(b'"SIGKILL"' in bytes(one.error) for one in past), "the last one stands in the record"
    told = [data for name, data in await events(rig, poison) if name == "status"]
    back = sum(data.get("reason") in HANDED_BACK for data in told)
    history = [data["status"] for data in told]
    assert (history.count("running") - back, history.count("retrying"), history.count("failed")) == (6, 4, 2)


async def test_one_that_kills_the_whole_machine_ends_after_its_attempts(rig: Rig) -> None:
    """Each attempt takes its supervisor along, which is started again as a process manager would do it."""
    rig.settings |= {"TASKGATE_HANDLERS": HANDLERS, "TASKGATE_LEASE_S": "1"}
    supervisor = await rig.worker()
    poison = await accept(rig, "kills_its_machine", max_attempts=3)
    echoes = [await accept(rig, "echo", n, max_attempts=5) for n in range(20)]

    async with asyncio.timeout(150):
        while (await read(rig, poison)).status not in FINAL:
            if supervisor.poll() is not None:
                supervisor = rig.spawn("worker")  # not waited for: the poison may end it before it is seen to be ready
            await asyncio.sleep(0.05)

    [dead] = await ended(rig, poison)
    assert (dead.status, dead.attempt, error(dead)["kind"]) == ("failed", 3, "lost")
    assert len([run for run in rig.runs() if run.task_id == poison]) == 3
    assert {record.status for record in await ended(rig, *echoes)} == {"succeeded"}

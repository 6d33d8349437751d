"""F19, leftovers for the next task: it finds none, or runs in a process of its own."""

import contextlib
from typing import Any

import pytest

from tests.conftest import eventually
from tests.processes import open_files
from tests.system.rig import Rig, task_children

pytestmark = pytest.mark.timeout(400)
LONG = (pytest.mark.full, pytest.mark.timeout(900))
HANDLERS = "tests.system.jobs,tests.field.leftovers"


async def result(rig: Rig, task_type: str) -> Any:
    task_id = await rig.submit(task_type, None)
    task = await rig.ended(task_id, within_s=120)
    assert (task["status"], task["attempt"]) == ("succeeded", 1), task
    return (await rig.http.get(f"/tasks/{task_id}/result")).json()


async def most_descriptors(supervisor: int) -> int:
    found = [0]
    for pid in task_children(supervisor):
        with contextlib.suppress(OSError):  # one that is replaced ends just now
            found.append(open_files(pid))
    return max(found)


@pytest.mark.parametrize("rounds", [1, pytest.param(200, marks=LONG)])
async def test_the_next_task_sees_the_defaults_and_nothing_piles_up(rig: Rig, rounds: int) -> None:
    rig.settings |= {"TASKGATE_HANDLERS": HANDLERS, "TASKGATE_LEASE_S": "3"}
    supervisor = await rig.worker(TASKGATE_WORKER_PROCESSES="1")
    await rig.gateway()
    fresh = await result(rig, "sees")
    await eventually(rig.children, lambda found: len(found) == 3, within_s=90)
    before, own = await most_descriptors(supervisor.pid), open_files(supervisor.pid)

    for _ in range(rounds):
        await result(rig, "leaves")
        assert await result(rig, "sees") == fresh

    async def told() -> dict[str, int]:
        [worker] = (await rig.http.get("/workers")).json()["items"]
        return dict(worker["left_behind"])

    await eventually(told, lambda left: left.get("leaves") == rounds, within_s=90)
    await eventually(lambda: most_descriptors(supervisor.pid), lambda now: now <= before + 5, within_s=120)
    await eventually(rig.children, lambda found: len(found) == 3, within_s=90)

    async def files() -> int:
        return open_files(supervisor.pid)

    await eventually(files, lambda now: now <= own + 10, within_s=90)  # more while a child is being replaced


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_a_process_of_its_own_sees_nothing_of_any_other_task(rig: Rig) -> None:
    rig.settings["TASKGATE_HANDLERS"] = HANDLERS
    await rig.worker(TASKGATE_WORKER_PROCESSES="1")
    await rig.gateway()
    fresh = await result(rig, "fresh.sees")
    assert (fresh["json"], fresh["threads"]) == ("1", 1)

    for _ in range(20):
        await result(rig, "fresh.leaves")
        assert await result(rig, "fresh.sees") == fresh

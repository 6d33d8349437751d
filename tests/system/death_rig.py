"""Tasks straight into the store, and what of them the system shows afterwards."""

import json
from pathlib import Path
from typing import Any

import msgspec

from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Limits, Submission, TaskRecord, TaskSpec
from tests.conftest import eventually
from tests.system.rig import FINAL, Rig, children_of, command_of

JOBS = "tests.system.death_jobs"


async def accept(rig: Rig, task_type: str, payload: Any = None, **spec: Any) -> str:
    """Submit without a gateway; the id."""
    spec = {"max_attempts": 1, **spec}
    task = TaskSpec(id=new_task_id(), type=task_type, **spec)
    item = Submission(
        id=task.id,
        queue=task.queue,
        type=task.type,
        tenant=task.tenant,
        priority=task.priority,
        spec=msgspec.json.encode(task),
        payload=json.dumps(payload).encode(),
    )
    await rig.store.submit([item], Limits())
    return task.id


async def read(rig: Rig, task_id: str) -> TaskRecord:
    [record] = await rig.store.read([task_id], result=True)
    assert record is not None
    return record


async def ended(rig: Rig, *task_ids: str, within_s: float = 60) -> list[TaskRecord]:
    """Once all are final."""

    async def look() -> list[TaskRecord]:
        found: list[TaskRecord] = []
        for at in range(0, len(task_ids), 128):
            found += [record for record in await rig.store.read(task_ids[at : at + 128], result=True) if record]
        return found

    await eventually(
        look, lambda found: all(record.status in FINAL for record in found), within_s=within_s, every_s=0.05
    )
    return await look()


async def started(rig: Rig, *task_ids: str, attempt: int = 1, within_s: float = 60) -> list[int]:
    """Once the handlers of all have begun that attempt; their processes."""

    async def look() -> dict[str, int]:
        return {run.task_id: run.pid for run in rig.runs() if run.task_id in task_ids and run.attempt == attempt}

    found = await eventually(look, lambda pids: len(pids) == len(task_ids), within_s=within_s)
    return [found[task_id] for task_id in task_ids]


def error(record: TaskRecord) -> dict[str, Any]:
    return dict(json.loads(record.error))


async def events(rig: Rig, task_id: str) -> list[tuple[str, dict[str, Any]]]:
    return [(event.name, json.loads(event.data)) for event in await rig.store.events(task_id)]


async def whole(rig: Rig, supervisor: int, *, sync: int, asynchronous: int = 1, within_s: float = 60) -> None:
    """Once the pool is as it was at the start: every slot there and free, nothing more below the supervisor.

    A child for tasks that must run alone may be there still.
    """

    async def look() -> tuple[list[str], list[str], int]:
        told = [child for child in await rig.children() if child["kind"] != "alone"]
        kinds = sorted(f"{child['kind']} {child['state']}" for child in told)
        processes = sorted({kind_of(pid) for pid in children_of(supervisor)})
        return kinds, processes, len(children_of(supervisor)) - len(await rig.children())

    wanted = (["async idle"] * asynchronous + ["sync idle"] * (sync + 1), ["child", "guard"], 1)
    await eventually(look, lambda seen: seen == wanted, within_s=within_s, every_s=0.1)


def kind_of(pid: int) -> str:
    """`child`, `guard`, or what else it is."""
    command = command_of(pid)
    return "child" if "workers.child" in command else "guard" if "guard.py" in command else f"{pid} {command}"


def sleepers(task_marker: str = "sleep 3600") -> list[int]:
    """Processes of that command line, wherever they belong."""
    return [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdecimal() and task_marker in command_of(int(folder.name))
    ]

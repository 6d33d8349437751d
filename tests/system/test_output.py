"""What tasks print is kept with them, in order and bounded, and no flood of it reaches anybody else."""

import asyncio
import json
import time
from typing import Any

import pytest

from taskgate.contract.models import Event
from tests.conftest import eventually
from tests.processes import cpu_s, resident_bytes, whole_lines
from tests.system.death_rig import accept, ended, read
from tests.system.rig import Rig

LONG = (pytest.mark.full, pytest.mark.timeout(300))
MIB = 1 << 20
KEPT_BYTES = 256 * 1024


@pytest.fixture
def printing(rig: Rig) -> Rig:
    rig.settings["TASKGATE_HANDLERS"] = "tests.workers.printing_jobs"
    return rig


async def output(rig: Rig, task_id: str) -> list[tuple[Event, dict[str, Any]]]:
    entries, _ = await rig.store.output(task_id, count=2000)
    return [(entry, json.loads(entry.data)) for entry in entries]


async def text(rig: Rig, task_id: str) -> str:
    return "".join(said["text"] for _, said in await output(rig, task_id))


def place(event: Event) -> tuple[int, ...]:
    return tuple(map(int, event.id.split("-")))


async def test_output_is_kept_in_order_before_the_end_of_its_task_and_over_its_attempts(printing: Rig) -> None:
    await printing.worker()
    prints = await accept(printing, "prints")
    dies = await accept(printing, "prints_and_dies", "kill", max_attempts=2)
    async_task = await accept(printing, "async_tells", "me")
    names = {name: await accept(printing, "tells", name) for name in ("n" * n for n in range(1, 25))}
    await ended(printing, prints, dies, async_task, *names.values())

    assert await text(printing, prints) == (
        "print\nshell\nerror\nprintf\nraw\nbuffer\nINFO jobs: info 1\nwarning careful n=3 what='a b'\ndunder\n"
        "no end of line"
    )
    attempts = [(said["attempt"], said["text"]) for _, said in await output(printing, dies)]
    for number in (1, 2):
        assert "".join(said for attempt, said in attempts if attempt == number) == (
            "a line\nlog line\nfrom C, and no end of line"
        )
    assert (await text(printing, async_task)).endswith("me subtask\nme thread\nme executor\nme end")
    for name, task_id in names.items():
        said = (await text(printing, task_id)).split()
        assert {word for word in said if set(word) == {"n"}} == {name}, said
    for task_id in (prints, dies, async_task):
        last = (await printing.store.events(task_id))[-1]
        assert json.loads(last.data)["status"] in ("succeeded", "failed")
        assert place((await output(printing, task_id))[-1][0]) < place(last)

    log = whole_lines(printing.folder / "worker.log")
    said_outside = [json.loads(line) for line in log if "while it is imported" in line]
    assert [one["message"] for one in said_outside][:1] == ["output outside of tasks"]
    assert all(json.loads(line) for line in log), "nothing that a task prints stands between the lines of the log"


@pytest.mark.parametrize("size_mib", [8, pytest.param(100, marks=LONG)])
async def test_a_flood_slows_nobody_but_its_own_task(printing: Rig, size_mib: int) -> None:
    supervisor = await printing.worker(TASKGATE_WORKER_PROCESSES="2")
    await ended(printing, *[await accept(printing, "quiet") for _ in range(4)])
    before, cpu_before, began = resident_bytes(supervisor.pid), cpu_s(supervisor.pid), time.monotonic()
    enough = printing.folder / "enough"
    floods = await accept(printing, "floods_until", {"mib": size_mib, "file": str(enough)})
    times, most = [], 0
    while (await read(printing, floods)).status not in ("succeeded", "failed"):
        asked = time.monotonic()
        await ended(printing, await accept(printing, "quiet"))
        times.append(time.monotonic() - asked)
        if len(times) == 5:
            enough.touch()
        most = max(most, resident_bytes(supervisor.pid))
        await asyncio.sleep(0.05)
        assert time.monotonic() - began < 200
    busy = (cpu_s(supervisor.pid) - cpu_before) / (time.monotonic() - began)

    entries, lost = await printing.store.output(floods, count=2000)
    kept = "".join(json.loads(entry.data)["text"] for entry in entries)
    record = await read(printing, floods)
    assert record.status == "succeeded"
    lines = int(record.result or 0)
    assert KEPT_BYTES - 64 * 1024 < len(kept) <= KEPT_BYTES
    assert len(kept) + lost == lines << 10, "every byte is kept or counted"
    assert kept.endswith(f"{lines - 1:09} {'x' * 1013}\n")
    assert sorted(times)[len(times) // 2] < 5, "neighbours; 0.1 s on a quiet machine"
    assert most - before < 30 * MIB
    assert busy < 0.5, f"{busy:.2f} cores, {len(times)} neighbours in {sum(times):.1f} s"


@pytest.mark.full
async def test_while_a_task_floods_its_supervisor_beats_and_it_can_be_cancelled(printing: Rig) -> None:
    await printing.worker()
    for kind in ("floods", "async_floods"):
        task_id = await accept(printing, kind, 1 << 20)

        async def lost(task_id: str = task_id) -> int:
            return (await printing.store.output(task_id, count=1))[1]

        async def beat_ms() -> int:
            return (await printing.store.workers())[0].beat_ms

        await eventually(lost, lambda count: count > MIB, within_s=60)
        await eventually(beat_ms, (await beat_ms()).__lt__, within_s=60)
        assert (await read(printing, task_id)).status == "running", "a flood without an end"
        await printing.store.cancel(task_id)
        await ended(printing, task_id)
        assert (await read(printing, task_id)).status == "canceled"


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_no_byte_of_a_thousand_short_tasks_goes_astray(printing: Rig) -> None:
    await printing.worker()
    names = {f"t{n}t": await accept(printing, "tells_shortly", f"t{n}t") for n in range(1000)}
    await ended(printing, *names.values(), within_s=200)
    for name, task_id in names.items():
        assert await text(printing, task_id) == f"{name} C\n{name} out\n{name} err\n{name}"

"""F09: a client that comes back from behind the kept history is told so; one that does not misses nothing."""

import pytest

from tests.api.sse_client import Block, Resuming
from tests.system.rig import Rig

RETAINED = 500

pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]


def numbers(blocks: list[Block]) -> list[int]:
    return [block.data["data"]["n"] for block in blocks if block.name == "custom"]


async def resumed(rig: Rig, task_id: str, seen: str) -> Resuming:
    stream = Resuming(rig.url, f"/tasks/{task_id}/events")
    stream.last_id = seen
    await stream.read(idle_s=20)
    return stream


async def test_f09_three_times_as_many_events_as_are_kept(rig: Rig) -> None:
    rig.settings["TASKGATE_HANDLERS"] = "tests.field.streaming_jobs"
    await rig.worker()
    await rig.gateway()
    task_id = await rig.submit("chatty", {"events": 3 * RETAINED})
    await rig.running(task_id, within_s=30)
    early = Resuming(rig.url, f"/tasks/{task_id}/events")
    connected = await early.connect()
    await connected.read(blocks=20, idle_s=30)  # some are snapshots: its stage and health change while it begins
    connected.reset()
    assert len(numbers(early.blocks)) >= 5
    behind = early.last_id
    assert (await rig.ended(task_id, within_s=60))["status"] == "succeeded"

    lost = await resumed(rig, task_id, behind)
    assert [block.name for block in lost.blocks[:3]] == ["gap", "snapshot", "custom"]
    assert numbers(lost.blocks) == list(range(numbers(lost.blocks)[0], 3 * RETAINED)), "then all that is kept, in order"
    assert (lost.blocks[-1].name, lost.blocks[-1].event_id) == ("end", lost.last_id)

    kept = [block for block in lost.blocks if block.event_id]
    stamps = [tuple(map(int, block.event_id.split("-"))) for block in kept]
    assert stamps == sorted(set(stamps)), "ids grow"
    for place in (0, len(kept) // 2, len(kept) - 3):
        again = await resumed(rig, task_id, kept[place].event_id)
        assert [block.event_id for block in again.blocks if block.event_id] == [b.event_id for b in kept[place + 1 :]]
        assert not {"gap", "snapshot"} & {block.name for block in again.blocks}
    assert (await resumed(rig, task_id, lost.last_id)).done

    other = await rig.submit("chatty", {"events": 1})
    await rig.ended(other)
    foreign = (await resumed(rig, other, "")).last_id
    for seen in (foreign, "5-5", "made-up", "-1", "9" * 10_000, "99999999999999-0", "0-0"):
        odd = await resumed(rig, task_id, seen)
        assert odd.statuses == [200], seen
        assert [block.name for block in odd.blocks[:2]] == ["gap", "snapshot"], seen
        assert odd.blocks[-1].name == "end"

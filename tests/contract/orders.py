"""What must be true of tasks that wait to be claimed: fair orders, concurrency and unique keys, limits."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from taskgate.contract import keys
from taskgate.contract.models import TaskRecord
from taskgate.contract.states import FINAL, Status

PREFIX = keys.prefix(0)
RUNNING = (Status.RUNNING, Status.CANCELING)

Found = Mapping[str, Any]
Records = Mapping[str, TaskRecord]


def check(found: Found, records: Records) -> None:
    waiting = _check_keys(found, records)
    _check_lanes(found, records, waiting)
    _check_unique(found, records)


def members(found: Found, *starts: str) -> dict[str, set[str]]:
    """What is in the keys that begin like this, by name without the prefix."""
    return {
        name: {each.decode() for each in value}
        for name, value in ((key.removeprefix(PREFIX), value) for key, value in found.items())
        if name.startswith(starts)
    }


def _field(found: Found, task_id: str, name: str) -> str:
    value: bytes = found[f"{PREFIX}task:{task_id}"].get(name.encode(), b"")
    return value.decode()


def _lane(found: Found, task_id: str) -> str:
    return _field(found, task_id, "place").split(":")[1]


def _check_keys(found: Found, records: Records) -> set[str]:
    """Whoever is ready or runs has a place of its concurrency key; one waits only when all are taken. Who does."""
    places: dict[str, set[str]] = defaultdict(set)
    blocked = members(found, "blocked:")
    waiting = {task_id for ids in blocked.values() for task_id in ids}
    wanted: dict[str, set[str]] = defaultdict(set)
    most: dict[str, int] = defaultdict(int)
    for task_id, record in records.items():
        if key := _field(found, task_id, "ckey"):
            most_here, _, hashed = key.partition(":")
            group = f"{record.spec.type}:{record.spec.tenant}:{hashed}"
            most[group] = max(most[group], int(most_here))
            if record.status is Status.QUEUED and task_id in waiting:
                wanted[f"blocked:{group}"].add(task_id)
            elif record.status is Status.QUEUED or record.status in RUNNING:
                places[f"places:{group}"].add(task_id)
    assert blocked == wanted
    assert members(found, "places:") == places
    for name, ids in places.items():
        group = name.removeprefix("places:")
        assert len(ids) <= most[group], f"{len(ids)} at a time of {group}"
    for name in blocked:
        entries: dict[bytes, bytes] = found[PREFIX + name]
        first = min(entries, key=lambda task_id: (float(entries[task_id]), task_id)).decode()
        taken = places.get(name.replace("blocked:", "places:"), set())
        assert len(taken) >= int(_field(found, first, "ckey").split(":")[0]), f"{first} waits although there is room"
    return waiting


def _check_lanes(found: Found, records: Records, blocked: set[str]) -> None:
    """Ready tasks, their tenants and lanes stand in the orders, nothing else does, and each lane has its marker."""
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    wanted: dict[str, set[str]] = defaultdict(set)
    capped = members(found, "capped:")
    running = [record.spec for record in records.values() if record.status in RUNNING]
    for task_id, record in records.items():
        if record.status is not Status.QUEUED:
            continue
        spec, lane = record.spec, _lane(found, task_id)
        score = float(_field(found, task_id, "score"))
        if task_id in blocked:
            continue
        scores[f"ready:{spec.queue}:{lane}:{spec.tenant}"][task_id] = score
        if f"{spec.queue}:{lane}" not in capped.get(f"capped:{spec.tenant}", ()):
            wanted[f"lane:{spec.queue}:{lane}"].add(spec.tenant)
            wanted[f"lanes:{spec.queue}"].add(lane)
            wanted["queues"].add(spec.queue)
    stored = {
        key.removeprefix(PREFIX): {task_id.decode(): float(score) for task_id, score in value.items()}
        for key, value in found.items()
        if key.startswith(f"{PREFIX}ready:")
    }
    assert stored == scores
    assert members(found, "lane:", "lanes:", "queues") == wanted
    assert members(found, "capped").get("capped", set()) == {name.removeprefix("capped:") for name in capped}
    for name in members(found, "turns:"):
        order = name.removeprefix("turns:")
        assert (f"lane:{order}" if ":" in order else f"lanes:{order}") in wanted, f"{name} was left behind"
    for name in capped:
        tenant = name.removeprefix("capped:")
        assert any(spec.tenant == tenant for spec in running), f"nothing will put {tenant} back"
    _check_markers(found, {name.removeprefix("lane:") for name in wanted if name.startswith("lane:")})
    for name in members(found, "capped-type:"):
        task_type = name.removeprefix("capped-type:")
        assert any(spec.type == task_type for spec in running), f"nothing will wake who serves {task_type}"


def _check_markers(found: Found, lanes: set[str]) -> None:
    """One for each lane; a lane whose type is at its limit needs none."""
    markers = {key.removeprefix(f"{PREFIX}wake:"): value for key, value in found.items() if ":wake:" in key}
    assert all(value == [b"1"] for value in markers.values())
    assert markers.keys() <= lanes
    for lane in lanes - markers.keys():
        queue, _, lane_type = lane.partition(":")
        waiting = members(found, f"capped-type:{lane_type.removesuffix('!alone')}")
        assert any(entry.split(":")[0] == queue for entries in waiting.values() for entry in entries), (
            f"nobody is told of {lane}"
        )


def _check_unique(found: Found, records: Records) -> None:
    """A key is taken exactly while its task lives."""
    taken = {key.removeprefix(PREFIX): value.decode() for key, value in found.items() if f"{PREFIX}unique:" in key}
    wanted: dict[str, str] = {}
    for task_id, record in records.items():
        hashed = _field(found, task_id, "unique")
        if hashed and record.status not in FINAL:
            name = f"unique:{record.spec.tenant}:{hashed}"
            assert name not in wanted, f"two live tasks of {name}"
            wanted[name] = task_id
    assert taken == wanted

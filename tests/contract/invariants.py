"""What must be true of the stored whole after any series of transitions."""

from collections import defaultdict
from typing import Any

from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import TaskRecord
from taskgate.contract.states import FINAL, WAITING, Status
from taskgate.contract.store import Store

PREFIX = keys.prefix(0)


async def everything(redis: Redis) -> dict[str, Any]:
    """All keys and their values: equal before and after means that nothing happened."""
    names = [key async for key in redis.scan_iter(count=1000)]
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.type(name)
    kinds = await pipeline.execute()
    for name, kind in zip(names, kinds, strict=True):
        match kind:
            case b"string":
                pipeline.get(name)
            case b"hash":
                pipeline.hgetall(name)
            case b"list":
                pipeline.lrange(name, 0, -1)
            case b"set":
                pipeline.smembers(name)
            case b"zset":
                pipeline.zrange(name, 0, -1, withscores=True)
            case b"stream":
                pipeline.xrange(name)
    values = await pipeline.execute()
    return {name.decode(): value for name, value in zip(names, values, strict=True)}


async def check(redis: Redis, store: Store) -> None:
    """Counters, fair orders, markers, holders, due times and life times agree with the records."""
    found = await everything(redis)
    records = await _records(found, store)
    _check_counters(found, records)
    _check_orders(found, records)
    _check_places(found, records)
    await _check_life_times(redis, found, records)


async def _records(found: dict[str, Any], store: Store) -> dict[str, TaskRecord]:
    ids = [
        key.removeprefix(f"{PREFIX}task:") for key in found if key.startswith(f"{PREFIX}task:") and key.count(":") == 3
    ]
    return {each.id: each for each in await store.read(ids) if each is not None} if ids else {}


def _check_counters(found: dict[str, Any], records: dict[str, TaskRecord]) -> None:
    wanted: dict[str, int] = defaultdict(int)
    for task_id, record in records.items():
        size = int(found[f"{PREFIX}task:{task_id}"][b"bytes"])
        for unit in (f"queue:{record.spec.queue}", f"tenant:{record.spec.tenant}"):
            if record.status in WAITING:
                wanted[f"waiting:{unit}"] += 1
                wanted[f"bytes:{unit}"] += size
        if record.status in (Status.RUNNING, Status.CANCELING):
            wanted[f"running:queue:{record.spec.queue}"] += 1
        if record.status in FINAL:
            wanted["kept:bytes"] += _kept(found, task_id)
    usage = {name.decode(): value for name, value in found.get(keys.usage(0), {}).items()}
    counted = {name: int(value) for name, value in usage.items() if not name.startswith(("drain_", "room_"))}
    assert counted == wanted, "counters, of which none may stay at 0"


def _kept(found: dict[str, Any], task_id: str) -> int:
    """Bytes that retention counts for a finished task."""
    record = found[f"{PREFIX}task:{task_id}"]
    return 2048 + len(record.get(b"payload", b"")) + len(record.get(b"result", b""))


def _check_orders(found: dict[str, Any], records: dict[str, TaskRecord]) -> None:
    """Queued tasks, their tenants and lanes stand in the orders, nothing else does, and each lane has its marker."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for task_id, record in records.items():
        spec = record.spec
        lane = found[f"{PREFIX}task:{task_id}"][b"place"].decode().split(":")[1]
        if record.status is Status.QUEUED:
            wanted[f"ready:{spec.queue}:{lane}:{spec.tenant}"].add(task_id)
            wanted[f"lane:{spec.queue}:{lane}"].add(spec.tenant)
            wanted[f"lanes:{spec.queue}"].add(lane)
            wanted["queues"].add(spec.queue)
            wanted[f"wake:{spec.queue}:{lane}"].add("1")
    assert _members(found, "ready:", "lane:", "lanes:", "queues", "wake:") == wanted
    assert all(len(value) == 1 for key, value in found.items() if key.startswith(f"{PREFIX}wake:"))


def _check_places(found: dict[str, Any], records: dict[str, TaskRecord]) -> None:
    wanted: dict[str, set[str]] = defaultdict(set)
    due = _members(found, "due").get("due", set())
    for task_id, record in records.items():
        if record.status in (Status.RUNNING, Status.CANCELING):
            wanted[f"held:{record.worker}"].add(task_id)
        if record.status is Status.FAILED:
            wanted[f"dead:{record.spec.queue}"].add(task_id)
        if record.status in FINAL:
            kept = _kept(found, task_id)
            wanted["final"].add(f"{record.spec.queue}:{record.spec.tenant}:{task_id}:{kept}")
            if kept >= 3072 and record.status is not Status.FAILED:
                wanted["heavy"].add(f"{record.spec.queue}:{record.spec.tenant}:{task_id}:{kept}")
        wanted[f"all:{record.spec.tenant}"].add(task_id)
        assert task_id in due or record.status not in (Status.SCHEDULED, Status.RETRYING)
        assert task_id not in due or record.status in WAITING
    assert _members(found, "held:", "dead:", "final", "heavy", "all:") == wanted


async def _check_life_times(redis: Redis, found: dict[str, Any], records: dict[str, TaskRecord]) -> None:
    names = [key for key in found if key.startswith(f"{PREFIX}task:")]
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.pttl(name)
    for name, left_ms in zip(names, await pipeline.execute(), strict=True):
        record = records.get(name.split(":")[3])
        lives = record is not None and record.status not in FINAL and not name.endswith(":alive")
        assert (left_ms > 0) != lives, f"{name}: of {record and record.status}"


def _members(found: dict[str, Any], *starts: str) -> dict[str, set[str]]:
    members = {}
    for key, value in found.items():
        name = key.removeprefix(PREFIX)
        if name.startswith(starts):
            members[name] = {(each[0] if isinstance(each, tuple | list) else each).decode() for each in value}
    return members

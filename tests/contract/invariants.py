"""What must be true of the stored whole after any series of transitions."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import TaskRecord
from taskgate.contract.states import FINAL, WAITING, Status
from taskgate.contract.store import Store
from tests.contract import orders

PREFIX = keys.prefix(0)
FOR_EVER = (
    "queues", "lanes:", "lane:", "ready:", "wake:", "due", "held:", "beats", "dead:", "final", "heavy", "all:", "usage",
    "letters:", "types", "places:", "blocked:", "capped", "turns:", "unique:",
    "apikeys",
)  # fmt: skip
"""Indexes whose entries the other checks account for, one by one; anything else must end by itself."""

_MEASURED = ("drain_", "room_")


_DUMP = """
local dump = {}
for _, key in ipairs(redis.call("KEYS", "*")) do
    local kind = redis.call("TYPE", key).ok
    local read = {
        string = { "GET" },
        hash = { "HGETALL" },
        list = { "LRANGE", 0, -1 },
        set = { "SMEMBERS" },
        zset = { "ZRANGE", 0, -1, "WITHSCORES" },
        stream = { "XRANGE", "-", "+" },
    }
    table.insert(read[kind], 2, key)
    dump[#dump + 1] = { key, kind, redis.call(unpack(read[kind])), redis.call("PTTL", key) }
end
return dump
"""


async def everything(redis: Redis) -> dict[str, Any]:
    """All keys and their values: equal before and after means that nothing happened."""
    return {name: value for name, (value, _) in (await _dump(redis)).items()}


async def usage(redis: Redis) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = await redis.hgetall(keys.usage(0))  # type: ignore[assignment]
    return found


async def _dump(redis: Redis) -> dict[str, tuple[Any, int]]:
    """Values and what is left of their lives in ms (-1: for ever, 0: less than one), in one call."""
    shapes: dict[bytes, Callable[[Any], Any]] = {b"hash": _pairs, b"zset": _pairs, b"set": set}
    reply = await redis.eval(_DUMP, 0)
    return {name.decode(): (shapes.get(kind, _same)(value), left_ms) for name, kind, value, left_ms in reply}


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _same(value: Any) -> Any:
    return value


async def check(redis: Redis, store: Store) -> dict[str, Any]:
    """Counters, fair orders, markers, holders, due times and life times agree with the records. All that is stored."""
    dump = await _dump(redis)
    found = {name: value for name, (value, _) in dump.items()}
    records = await _records(found, store)
    _check_counters(found, records)
    orders.check(found, records)
    _check_indexes(found, records)
    _check_life_times({name: left_ms for name, (_, left_ms) in dump.items()}, records)
    return found


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
            if record.status in (Status.SCHEDULED, Status.RETRYING):
                wanted[f"{record.status}:{unit}"] += 1
        if record.status in orders.RUNNING:
            wanted[f"running:queue:{record.spec.queue}"] += 1
            wanted[f"running:type:{record.spec.type}"] += 1
            wanted[f"running:tenant:{record.spec.tenant}"] += 1
        if record.status in FINAL:
            wanted["kept:bytes"] += _kept(found, task_id)
        if _mark(found, task_id):
            wanted[f"spilled:queue:{record.spec.queue}"] += 1
            wanted[f"spilled_bytes:queue:{record.spec.queue}"] += _kept(found, task_id)
    usage = {name.decode(): value for name, value in found.get(keys.usage(0), {}).items()}
    counted = {name: int(value) for name, value in usage.items() if not name.startswith(_MEASURED)}
    assert counted == wanted, "counters, of which none may stay at 0"
    _check_measured({name for name in usage if name.startswith(_MEASURED)}, records)


def _check_measured(names: set[str], records: dict[str, TaskRecord]) -> None:
    """The measured speed of a queue or tenant goes with its last task."""
    known = {record.spec.queue for record in records.values()}
    known |= {f"tenant:{record.spec.tenant}" for record in records.values()}
    for name in names:
        assert name.partition(":")[2] in known, f"{name} was left behind"


def _kept(found: dict[str, Any], task_id: str) -> int:
    """Bytes that retention counts for a finished task."""
    record = found[f"{PREFIX}task:{task_id}"]
    texts = len(record.get(b"payload", b"")) + len(record.get(b"result", b""))
    return 2048 + texts + int(record.get(b"logs", 0)) + int(record.get(b"history", 0))


def _mark(found: dict[str, Any], task_id: str) -> str:
    """What tells a spilled dead letter from others; a redriven one is none."""
    value: bytes = found[f"{PREFIX}task:{task_id}"].get(b"spilled", b"")
    return value.decode()


def _check_indexes(found: dict[str, Any], records: dict[str, TaskRecord]) -> None:
    wanted: dict[str, set[str]] = defaultdict(set)
    due: dict[str, float] = {}
    for task_id, record in records.items():
        if record.status in (Status.RUNNING, Status.CANCELING):
            wanted[f"held:{record.worker}"].add(task_id)
        assert record.status is Status.FAILED or not _mark(found, task_id)
        if record.status is Status.FAILED:
            wanted[f"dead:{record.spec.queue}"].add(task_id)
            wanted[f"letters:{record.spec.tenant}"].add(task_id)
        if record.status in FINAL:
            kept = _kept(found, task_id)
            wanted["final"].add(f"{record.spec.queue}:{record.spec.tenant}:{task_id}:{kept}{_mark(found, task_id)}")
            if kept >= 3072 and record.status is not Status.FAILED:
                wanted["heavy"].add(f"{record.spec.queue}:{record.spec.tenant}:{task_id}:{kept}")
        wanted[f"all:{record.spec.tenant}"].add(task_id)
        times = [] if record.status not in WAITING or record.status is Status.QUEUED else [record.due_ms]
        if record.status in WAITING and record.deadline_ms and b"met" not in found[f"{PREFIX}task:{task_id}"]:
            times.append(record.deadline_ms)
        if times:
            due[task_id] = min(times)
    assert orders.members(found, "held:", "dead:", "letters:", "final", "heavy", "all:") == wanted
    assert {each.decode(): float(at) for each, at in found.get(f"{PREFIX}due", {}).items()} == due


def _check_life_times(left: dict[str, int], records: dict[str, TaskRecord]) -> None:
    for name, left_ms in left.items():
        if name.startswith(f"{PREFIX}task:"):
            record = records.get(name.split(":")[3])
            lives = record is not None and record.status not in FINAL and not name.endswith(":alive")
            assert (left_ms >= 0) != lives, f"{name}: of {record and record.status}"
        elif not name.removeprefix(PREFIX).startswith(FOR_EVER):
            assert left_ms >= 0, f"{name} lives for ever"

"""The verdict: what the store says of every task, against what clients were promised and what handlers wrote down."""

import json
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from redis.asyncio import Redis

from loadtest.chaos import stamps
from loadtest.chaos.stamps import Run
from loadtest.chaos.users import Entry, Ledger
from taskgate.contract import keys
from taskgate.contract.models import Event, TaskRecord
from taskgate.contract.states import FINAL, Status
from taskgate.contract.store import Store
from tests.contract import invariants

CLOCKS_DRIFT_MS = 5
NOBODY_RAN = {"crash", "lost", "lease", "timeout", "memory"}
"""Error kinds that say why an attempt counts although its handler may never have started."""
READ_AT_ONCE = 200


class Task(NamedTuple):
    """All that is known of one."""

    record: TaskRecord
    events: list[Event]
    runs: list[Run]
    entry: Entry | None
    """None: submitted by a handler."""


async def unfinished(redis: Redis, store: Store) -> int:
    """How many tasks there are that have not ended."""
    records = [record for _, record in await _records(redis, store)]
    return sum(record is None or record.status not in FINAL for record in records)


async def judge(redis: Redis, store: Store, ledger: Ledger, found: dict[str, list[Run]]) -> tuple[list[str], str]:
    """Every broken promise in a line, and what there was in one. All has ended, every supervisor has left."""
    problems = [f"{number} × {what}" for what, number in ledger.broken.items()]
    by_id = {entry.task_id: entry for entry in ledger.promised}
    records = {task_id: record for task_id, record in await _records(redis, store) if record is not None}
    problems += [f"{e.task_id} ({e.task_type}): accepted and gone" for e in ledger.promised if e.task_id not in records]
    problems += await _strangers(store, records, ledger)
    drift_ms = time.time() * 1000 - time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6
    ends: Counter[str] = Counter()
    for task_id, record in records.items():
        events = await store.events(task_id)
        task = Task(record, events, found.get(task_id, []), by_id.get(task_id))
        problems += [f"{task_id} ({record.spec.type}): {what}" for what in faults(task, drift_ms=drift_ms)]
        ends[str(record.status)] += 1
    problems += [f"{task_id}: ran, but was never accepted" for task_id in found if task_id not in records]
    problems += await _left_behind(redis, store)
    attempts = sum(record.attempt for record in records.values())
    runs = [run for each in found.values() for run in each]
    cut_short = sum(not run.ended for run in runs)
    counts = ", ".join(f"{number} {status}" for status, number in sorted(ends.items()))
    return problems, (
        f"{len(ledger.promised)} accepted by HTTP, {len(records)} tasks ({counts}), "
        f"{attempts} attempts, {len(runs)} runs, {cut_short} cut short"
    )


def faults(task: Task, *, drift_ms: float) -> Iterator[str]:
    """What is wrong with one task. `drift_ms`: the wall clock less the boot clock."""
    record, entry = task.record, task.entry
    statuses = [json.loads(event.data) for event in task.events if event.name == "status"]
    ends = [each["status"] for each in statuses if each["status"] in FINAL]
    if record.status not in FINAL:
        yield f"still {record.status}"
        return
    if ends != [record.status] or statuses[-1]["status"] != record.status:
        yield f"ended as {record.status}, events say {[each['status'] for each in statuses]}"
    if record.attempt > record.spec.max_attempts:
        yield f"{record.attempt} attempts of {record.spec.max_attempts}"
    for earlier, later in stamps.overlaps(task.runs):
        yield f"runs overlap by {(earlier.last - later.start) / 1e6:.1f} ms: {earlier}, {later}"
    last_ms = max((run.last for run in task.runs), default=0) / 1e6 + drift_ms
    if task.runs and last_ms > record.finished_ms + CLOCKS_DRIFT_MS:
        yield f"ran for {last_ms - record.finished_ms:.1f} ms after its end as {record.status}"
    yield from _attempts(task, statuses)
    yield from _end(task)
    if entry is not None:
        yield from _promises(entry, record)


def _attempts(task: Task, statuses: list[dict[str, Any]]) -> Iterator[str]:
    """Every counted attempt ran or says why not, and nothing ran without one."""
    claimed = {each["attempt"] for each in statuses if each["status"] == "running"}
    reasons = {each["attempt"]: each["error"]["kind"] for each in statuses if "error" in each}
    for number in range(1, task.record.attempt + 1):
        ran = any(run.attempt == number for run in task.runs)
        if not ran and reasons.get(number) not in NOBODY_RAN and task.record.status != Status.CANCELED:
            yield f"attempt {number} was counted without a run: {reasons.get(number)}"
    for run in task.runs:
        if run.attempt not in claimed:
            yield f"attempt {run.attempt} ran without a claim"


def _end(task: Task) -> Iterator[str]:
    record, runs = task.record, task.runs
    kind = json.loads(record.error)["kind"] if record.error else ""
    if record.status == Status.SUCCEEDED and not any(run.ended and run.attempt == record.attempt for run in runs):
        yield f"succeeded in attempt {record.attempt} without running to its end"
    if record.status == Status.EXPIRED and (runs or not record.deadline_ms):
        yield f"expired with {len(runs)} runs, deadline {record.deadline_ms}"
    if record.status == Status.FAILED:
        if not kind:
            yield "failed without an error"
        if record.spec.type != "chaos.fail" and record.attempt < record.spec.max_attempts:
            yield f"failed ({kind}) with attempt {record.attempt} of {record.spec.max_attempts}"


def _promises(entry: Entry, record: TaskRecord) -> Iterator[str]:
    if entry.seen and entry.seen != record.status:
        yield f"a client saw {entry.seen}, now it is {record.status}"
    if record.status == Status.CANCELED and not entry.cancel_asked:
        yield "canceled, and nobody asked"
    if entry.cancel_answer in (200, 202) and record.status not in (Status.CANCELED, Status.SUCCEEDED):
        yield f"cancel was answered {entry.cancel_answer}, and it {record.status}"
    if entry.cancel_answer == 200 and record.status != Status.CANCELED:
        yield f"canceled at once, and it {record.status}"


async def _strangers(store: Store, records: dict[str, TaskRecord], ledger: Ledger) -> Iterator[str] | list[str]:
    """Tasks that nobody was promised: only those of unsure submissions and of parents that succeeded may be there."""
    unsure = {entry.number for entry in ledger.entries if not entry.task_id}
    promised = {entry.task_id for entry in ledger.promised}
    wanted: set[str] = set()
    for task_id, record in records.items():
        if record.spec.type == "chaos.parent" and record.status == Status.SUCCEEDED:
            _, result = await store.result(task_id)
            wanted |= set(json.loads(result))
    problems = [f"{task_id}: submitted by a handler that succeeded, and gone" for task_id in wanted - records.keys()]
    for task_id in records.keys() - promised - wanted:
        spec = records[task_id].spec
        number = json.loads(bytes(spec.metadata))["number"] if spec.metadata else None
        if number not in unsure:
            problems.append(f"{task_id} ({spec.type}): accepted twice, or by nobody: {number=}")
        unsure.discard(number)
    return problems


async def _left_behind(redis: Redis, store: Store) -> list[str]:
    """What must not be in Redis once everything has ended and every supervisor has left."""
    problems = []
    try:
        await invariants.check(redis, store)
    except AssertionError:
        problems.append(f"invariants: {traceback.format_exc(limit=-1)[-2000:]}")
    prefix = keys.prefix(0)
    gone = tuple(prefix + name for name in ("held:", "beats", "worker:", "due", "lanes:", "lane:", "ready:"))
    async for key in redis.scan_iter(count=1000):
        name = key.decode()
        if name.startswith(gone):
            problems.append(f"left behind: {name}")
    usage = await store.usage(0)
    problems += [
        f"counter left: {name} = {value:g}"
        for name, value in usage.items()
        if name.startswith(("waiting:", "bytes:", "running:"))
    ]
    return problems


async def _records(redis: Redis, store: Store) -> list[tuple[str, TaskRecord | None]]:
    prefix = f"{keys.prefix(0)}all:"
    ids: list[str] = []
    async for key in redis.scan_iter(match=f"{prefix}*", count=1000):
        ids += [bytes(task_id).decode() for task_id in await redis.zrange(key, 0, -1)]  # type: ignore[arg-type]
    found: list[tuple[str, TaskRecord | None]] = []
    for n in range(0, len(ids), READ_AT_ONCE):
        some = ids[n : n + READ_AT_ONCE]
        found += zip(some, await store.read(some), strict=True)
    return found

"""What the server spends on a task, through the store itself: CPU per submission, memory per finished task."""

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from redis.asyncio import Redis

from loadtest import machine
from loadtest.measures import Run, Sizes
from loadtest.services import TEXT
from loadtest.stand_in import LEASE_MS, SERVED, WORKER, worker_info
from loadtest.valkey import Durability, Valkey, serving
from taskgate.contract import ids
from taskgate.contract.models import Accepted, Claimed, Finish, Limits, QueueLimits, Submission, TaskSpec
from taskgate.contract.store import Store

GROUPS = (64, 128)
_LIMITS = Limits(queue=QueueLimits(tasks=10_000_000, bytes=1 << 40))
T = TypeVar("T")


def submissions(durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`store`: microseconds of server CPU per submission in full groups, without and with an idempotency key."""
    for group in GROUPS:
        figures, foreign = {}, 0.0
        for name, with_key in (("plain", False), ("keyed", True)):
            with serving(durability) as valkey:
                watch = machine.Foreign([valkey.group])
                figures[f"{name}_us"] = asyncio.run(_submission_cost(valkey, group, sizes.store_tasks, with_key))
                foreign = max(foreign, watch.cores())
        yield _run(f"store-{group}", durability, figures, foreign)


def finished_memory(durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`store-memory`: bytes per finished task; and the server's CPU for a claim and a finish in full groups."""
    with serving(durability) as valkey:
        watch = machine.Foreign([valkey.group])
        figures = asyncio.run(_whole_life(valkey, sizes.store_tasks))
        yield _run("store-memory", durability, figures, watch.cores())


async def _submission_cost(valkey: Valkey, group: int, tasks: int, with_key: bool) -> float:
    async with _connected(valkey) as redis:
        store = Store(redis)
        await store.submit(_tasks(group, with_key=with_key), _LIMITS)  # loads the script
        batches = _groups(_tasks(tasks, with_key=with_key), group)
        before = valkey.used_cpu_s()
        for batch in batches:
            _check(await store.submit(batch, _LIMITS))
        return (valkey.used_cpu_s() - before) / tasks * 1e6


async def _whole_life(valkey: Valkey, tasks: int) -> dict[str, float]:
    async with _connected(valkey) as redis:
        store = Store(redis)
        await store.beat(0, worker_info(), held=[], served=SERVED)
        await _live(store, valkey, GROUPS[0])  # loads the scripts, makes the shared keys
        before = valkey.used_memory()
        claim_us, finish_us = await _live(store, valkey, tasks)
        bytes_each = (valkey.used_memory() - before) / tasks
        return {"bytes": bytes_each, "claim_us": claim_us, "finish_us": finish_us}


async def _live(store: Store, valkey: Valkey, tasks: int) -> tuple[float, float]:
    """Submit, claim and finish that many; server CPU in microseconds for a claim and a finish."""
    for batch in _groups(_tasks(tasks, with_key=False), GROUPS[0]):
        _check(await store.submit(batch, _LIMITS))
    claiming = finishing = 0.0
    left = tasks
    while left:
        started = valkey.used_cpu_s()
        claimed = await store.claim(0, WORKER, served=SERVED, free_sync=GROUPS[0], free_async=0, lease_ms=LEASE_MS)
        between = valkey.used_cpu_s()
        answers = await store.finish(0, WORKER, [_finish(each) for each in claimed])
        if set(answers) != {"succeeded"}:
            raise OSError(f"finish answered {set(answers)}")
        claiming, finishing = claiming + between - started, finishing + valkey.used_cpu_s() - between
        left -= len(claimed)
    return claiming / tasks * 1e6, finishing / tasks * 1e6


def _connected(valkey: Valkey) -> Redis:
    return Redis.from_url(valkey.url)


def _tasks(count: int, *, with_key: bool) -> list[Submission]:
    return [task(n, with_key=with_key) for n in range(count)]


def task(n: int, *, with_key: bool) -> Submission:
    """As the gateway makes it of the benchmark's body."""
    payload = b'{"n":%d,"text":"%s"}' % (1_000_000_000 + n, TEXT.encode())
    spec = TaskSpec(id=ids.new_task_id(), type="noop", schema="0123456789abcdef", request_id="0" * 32)
    return Submission(
        id=spec.id,
        queue=spec.queue,
        type=spec.type,
        tenant=spec.tenant,
        priority=spec.priority,
        spec=msgspec.json.encode(spec),
        payload=payload,
        idempotency_key=hashlib.sha256(spec.id.encode()).hexdigest() if with_key else "",
        fingerprint=hashlib.sha256(payload).hexdigest() if with_key else "",
    )


def _finish(each: Claimed) -> Finish:
    return Finish(id=each.id, epoch=each.epoch, outcome="succeeded", result=b'{"n":1000000000}')


def _groups(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _check(outcomes: Sequence[object]) -> None:
    refused = [outcome for outcome in outcomes if not isinstance(outcome, Accepted)]
    if refused:
        raise OSError(f"refused: {refused[0]!r}")


def _run(what: str, durability: Durability, figures: dict[str, float], foreign_cores: float) -> Run:
    rounded = {name: round(figure, 2) for name, figure in figures.items()}
    return Run(what, "taskgate", str(durability), rounded, round(foreign_cores, 2))

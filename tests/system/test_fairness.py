"""Real workers share their slots: a flood of one delays nobody, and limits hold at every moment."""

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskgate.contract.ids import key_hash, new_task_id
from taskgate.contract.models import Accepted, Limits, QueueLimits, Submission, TaskSpec, position
from tests.conftest import Server, eventually
from tests.system.rig import FINAL, Rig, Run, task_children, until_dead

CHILDREN = 2
LONG = (pytest.mark.full, pytest.mark.timeout(300))
LIMITS = Limits(queue=QueueLimits(tasks=10**6, bytes=1 << 40))
POLICY = """
[tenants.three]
concurrency = 3
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "policy.toml").write_text(POLICY)
    return {
        "TASKGATE_HANDLERS": "tests.system.fair_jobs",
        "TASKGATE_WORKER_PROCESSES": str(CHILDREN),
        "TASKGATE_POLICY_FILE": str(tmp_path / "policy.toml"),
        "TASKGATE_LEASE_S": "2",
    }


@pytest.fixture
def fair_rig(rig: Rig, settings: dict[str, str]) -> Rig:
    rig.settings = settings
    return rig


async def submit(rig: Rig, count: int, task_type: str, ms: float, tenant: str = "default", key: str = "") -> list[str]:
    """Straight into the store: a gateway has no part in it."""
    ids: list[str] = []
    while len(ids) < count:
        items = []
        for _ in range(min(128, count - len(ids))):
            spec = TaskSpec(id=new_task_id(), type=task_type, tenant=tenant, max_attempts=9, concurrency_key=key)
            items.append(
                Submission(
                    id=spec.id,
                    queue=spec.queue,
                    type=spec.type,
                    tenant=spec.tenant,
                    priority=spec.priority,
                    spec=msgspec.json.encode(spec),
                    payload=str(ms).encode(),
                    concurrency_key=key_hash(key),
                    concurrency=2,
                )
            )
        outcomes = await rig.store.submit(items, LIMITS)
        assert all(isinstance(outcome, Accepted) for outcome in outcomes)
        ids += [item.id for item in items]
    return ids


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


async def started(rig: Rig, task_id: str, *, within_s: float = 60) -> Run:
    async def runs() -> list[Run]:
        return [run for run in rig.runs() if run.task_id == task_id]

    [run] = await eventually(runs, bool, within_s=within_s)
    return run


async def waiting(rig: Rig) -> int:
    return int((await rig.store.usage(0)).get("waiting:queue:default", 0))


@pytest.mark.parametrize(
    ("flood", "run_ms", "newcomers"),
    [
        (1000, 20, 2),
        pytest.param(50_000, 5, 6, marks=LONG),
        pytest.param(1000, 50, 6, marks=LONG),
        pytest.param(100, 500, 2, marks=LONG),
    ],
)
async def test_a_tenants_flood_delays_another_by_the_task_that_runs(
    fair_rig: Rig, flood: int, run_ms: int, newcomers: int
) -> None:
    """What has been handed over or claimed at that moment may go first: one task a child of each."""
    await submit(fair_rig, flood, "sleep", run_ms, tenant="a")
    await fair_rig.worker()
    for n in range(newcomers):
        await started_since(fair_rig, 2 * CHILDREN * (n + 1))
        [newcomer] = await submit(fair_rig, 1, "sleep", run_ms, tenant="b")
        accepted_ns = boot_ns()
        await started(fair_rig, newcomer)
        ahead = await claimed_before(fair_rig, newcomer, accepted_ns)
        assert len(ahead) <= 2 * CHILDREN, "so many were ahead of it"
    assert await waiting(fair_rig) > 0, "the flood was over"


async def claimed_before(rig: Rig, task_id: str, since_ns: int) -> list[str]:
    """Other tasks that began since then and were claimed no later: what others took after it is no matter."""
    first, *_ = await rig.store.events(task_id)
    claimed_ms, _ = position(first.id)
    began = [run.task_id for run in rig.runs() if run.start > since_ns and run.task_id != task_id]
    records = await rig.store.read(began) if began else []
    return [each.id for each in records if each is not None and each.started_ms <= claimed_ms]


async def started_since(rig: Rig, count: int) -> None:
    async def runs() -> int:
        return len(rig.runs())

    before = await runs()
    await eventually(runs, lambda now: now >= before + count, within_s=120)


@pytest.mark.parametrize(
    ("flood_type", "ms", "flood", "other"),
    [
        pytest.param("sleep", 1, 8000, "sleep.fresh", id="pipelined, fresh"),
        pytest.param("sleep.fresh", 300, 60, "sleep", id="fresh, plain", marks=LONG),
        pytest.param("nap", 200, 3000, "nap.other", id="async", marks=LONG),
    ],
)
async def test_a_flood_of_one_type_does_not_keep_another_from_running(
    fair_rig: Rig, flood_type: str, ms: float, flood: int, other: str
) -> None:
    await fair_rig.worker()
    await eventually(fair_rig.children, all_ready, within_s=60)
    await submit(fair_rig, flood, flood_type, ms)
    await started_since(fair_rig, 2)
    [task_id] = await submit(fair_rig, 1, other, 1)
    run = await started(fair_rig, task_id)
    later = [each for each in fair_rig.runs() if each.start > run.start]
    assert later or await waiting(fair_rig) > 0, "the flood was over"


def all_ready(children: list[dict[str, Any]]) -> bool:
    """The spare, too."""
    kinds = Counter(child["kind"] for child in children if child["state"] != "starting")
    return kinds["sync"] > CHILDREN and kinds["async"] > 0


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_limits_hold_at_every_moment_on_two_machines(fair_rig: Rig) -> None:
    """One of them is killed in between: its tasks run again, and never beside what it still runs."""
    fair_rig.settings["TASKGATE_LEASE_S"] = "6"  # nothing is taken over before its child's death has been noted here
    first = await fair_rig.worker()
    await fair_rig.worker()
    kinds: dict[str, tuple[str, int]] = {}
    for _ in range(3):
        for task_type, tenant, key, most in (
            ("pair", "default", "", 2),
            ("nap.pair", "default", "", 2),
            ("sleep", "three", "", 3),
            ("keyed", "default", "k", 2),
            ("keyed", "default", "l", 2),
        ):
            for task_id in await submit(fair_rig, 20, task_type, 15, tenant, key):
                kinds[task_id] = task_type + tenant + key, most
    died_ns: dict[int, int] = {}
    await started_since(fair_rig, 20)
    os.kill(first.pid, signal.SIGSTOP)  # it starts no other child meanwhile
    children = task_children(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    for pid in children:
        await until_dead(pid)
        died_ns[pid] = boot_ns()
    await fair_rig.worker()
    await eventually(lambda: all_ended(fair_rig, list(kinds)), bool, within_s=120, every_s=0.2)

    for group, most in set(kinds.values()):
        runs = [run for run in fair_rig.runs() if kinds[run.task_id][0] == group]
        assert at_a_time(runs, died_ns) <= most, group
    assert Counter(run.task_id for run in fair_rig.runs() if run.end).keys() == kinds.keys()


async def all_ended(rig: Rig, ids: list[str]) -> bool:
    records = [record for n in range(0, len(ids), 100) for record in await rig.store.read(ids[n : n + 100])]
    return all(record is not None and str(record.status) in FINAL for record in records)


def at_a_time(runs: list[Run], died_ns: dict[int, int]) -> int:
    """The most that ran at once. What has no end ran until its process was dead."""
    steps = [(run.start, 1) for run in runs]
    steps += [(run.end or died_ns[run.pid], -1) for run in runs]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


@pytest.mark.full
async def test_a_place_that_is_given_back_is_taken_at_once(fair_rig: Rig) -> None:
    """No beat has to find out: one comes every 100 s."""
    fair_rig.settings["TASKGATE_LEASE_S"] = "300"
    await fair_rig.worker()
    ids = [task_id for n in range(10) for task_id in await submit(fair_rig, 2, "keyed", 1, key=f"k{n % 2}")]
    ids += await submit(fair_rig, 10, "pair", 1)
    ids += await submit(fair_rig, 10, "sleep", 1, tenant="three")
    await eventually(lambda: all_ended(fair_rig, ids), bool, within_s=80)


@pytest.mark.full
async def test_raised_limits_are_seen_while_a_task_at_the_old_one_runs(
    fair_rig: Rig, own_server: Server, tmp_path: Path
) -> None:
    await fair_rig.worker()
    held = await submit(fair_rig, 3, "nap", 60_000, tenant="three")
    for task_id in held:
        await started(fair_rig, task_id)
    [waits] = await submit(fair_rig, 1, "nap", 1, tenant="three")
    await submit(fair_rig, 1, "nap", 1)
    await asyncio.sleep(0)
    assert [run for run in fair_rig.runs() if run.task_id == waits] == []

    (tmp_path / "raised.toml").write_text(POLICY.replace("3", "4"))
    await fair_rig.worker(TASKGATE_POLICY_FILE=str(tmp_path / "raised.toml"))
    await started(fair_rig, waits)
    for task_id in held:
        await fair_rig.store.cancel(task_id)
    await eventually(lambda: all_ended(fair_rig, held), bool, within_s=30)

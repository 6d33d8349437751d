"""Estimates: when a task starts, how long it still runs; null where nothing is known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from app import estimates
from app.door import Door
from app.estimates import Turns
from app.snapshots import decided_at_the_read
from app.view import Estimate
from taskgate.contract.errors import StoreUnavailable
from taskgate.contract.models import WAITS_FOR_A_LIMIT, WAITS_FOR_A_WORKER, Pace, TaskRecord, TaskSpec, WorkerInfo
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.api.conftest import Worker, client_of, next_ms, submit

FRESH = {"Cache-Control": "no-cache"}
STILL = Pace(now_ms=10_000, since_ms=None, left=0, per_s=None, waiting=1, lanes=1, tenants=1)


def record(status: Status = Status.RUNNING, **more: Any) -> TaskRecord:
    fields = dict.fromkeys(TaskRecord.__struct_fields__, 0) | {
        "spec": TaskSpec(id="x", type="echo"),
        "status": status,
        "started_ms": 10_000,
        "now_ms": 20_000,
        "progress": b"",
        "position": None,
    }
    return TaskRecord(**fields | more)


def said(types: list[str], run_ms: dict[str, int], **more: Any) -> WorkerInfo:
    """A supervisor's own words, as far as estimates look at them."""
    fields: dict[str, Any] = {
        "lease_ms": 6_000,
        "queues": ["default"],
        "children": [],
        "wanted_children": 2,
        "slots": {"echo": 2},
        "beat_ms": 20_000,
    }
    fields |= more
    return WorkerInfo(
        id="w", host="host", pid=1, started_ms=0, types=types, state="ready", guard="ok", run_ms=run_ms, **fields
    )


def start(position: int, pace: Pace, *workers: WorkerInfo) -> Estimate | None:
    return estimates.start(record(Status.QUEUED, position=position), pace, list(workers))


@pytest.mark.parametrize(
    ("progress", "left_ms"),
    [
        ({"current": 1, "total": 4, "at_ms": 20_000}, 30_000),
        ({"current": 1, "total": 4, "at_ms": 15_000}, 10_000),
        ({"current": 4, "total": 4, "at_ms": 15_000}, 0),
        ({"current": 5, "total": 4, "at_ms": 15_000}, 0),
        ({"current": 2, "total": 4, "at_ms": 12_000}, 10_000),  # the other half is overdue: so slow it has been
        ({"current": 1, "total": 4, "at_ms": 99_000}, 30_000),
        ({"current": 0, "total": 4, "at_ms": 15_000}, None),
        ({"current": 3, "total": None, "at_ms": 15_000}, None),
        ({"current": 3, "total": 0}, None),
        ({"current": 6, "total": 10, "base": 5, "base_ms": 13_500, "at_ms": 15_000}, 1_000),  # 5 were there before it
        ({"current": 8, "total": 10, "base": 5, "base_ms": 15_500, "at_ms": 20_000}, 3_000),
        ({"current": 5, "total": 10, "base": 5, "base_ms": 13_500, "at_ms": 13_500}, None),
        ({"current": 6, "total": 10, "base": 5, "base_ms": 20_000, "at_ms": 20_000}, None),  # in no time: no pace
        ({"current": 10, "total": 10, "base": 5, "base_ms": 20_000, "at_ms": 20_000}, 0),
        ({}, None),
    ],
)
def test_progress_tells_the_rest_at_its_own_pace(progress: dict[str, Any], left_ms: int | None) -> None:
    found = record(progress=msgspec.json.encode(progress) if progress else b"")
    assert estimates.left_by_progress_ms(found) == left_ms


@pytest.mark.parametrize(("current", "total"), [(1e-9, 1e15), (5e-324, 1), (5e-324, 1e300), (-1e300, 1e300)])
async def test_progress_out_of_all_proportion_hides_no_task(
    http: httpx.AsyncClient, worker: Worker, current: float, total: float
) -> None:
    """No attempt lasts that long: there is no estimate, and the task is shown, in lists too."""
    task = await submit(http)
    [claimed] = await worker.claim()
    said = {"current": current, "total": total, "base": -1e300 if current < 0 else 0, "at_ms": claimed.claimed_ms}
    await worker.report(claimed, progress=msgspec.json.encode(said))
    shown = await http.get(f"/tasks/{task['id']}", headers=FRESH)
    assert (shown.status_code, shown.json()["estimate"]) == (200, None)
    listed = await http.get("/tasks")
    assert (listed.status_code, len(listed.json()["items"])) == (200, 1)


def test_past_runs_tell_the_rest_until_this_one_takes_longer() -> None:
    assert estimates.left_by_runs_ms(record(), 12_000) == 2_000
    assert estimates.left_by_runs_ms(record(), 10_000) is None
    assert estimates.left_by_runs_ms(record(), None) is None
    assert estimates.typical_ms(record(), [said([], {"echo": 10}), said([], {"echo": 30}), said([], {"b": 9})]) == 20


@pytest.mark.parametrize(
    ("pace", "position", "starts_in_ms"),
    [
        (Pace(10_000, 9_500, 3, 2.0, 9, 1, 1), 0, 500),
        (Pace(10_000, 9_500, 3, 2.0, 9, 1, 1), 5, 3_000),
        (Pace(10_000, 9_500, 3, 2.0, 9, 3, 2), 0, 3_000),  # five others have their turn before
        (Pace(10_000, 9_500, 3, 2.0, 4, 3, 2), 0, 2_000),  # but there are not so many
        (Pace(20_000, 10_000, 1, 2.0, 9, 1, 1), 0, 5_000),  # it has stood nearly still since
        (Pace(12_000, 10_000, 3, None, 9, 1, 1), 1, 1_000),
    ],
)
def test_a_queue_tells_the_start_by_what_leaves_it(pace: Pace, position: int, starts_in_ms: int) -> None:
    assert start(position, pace, said(["echo:v1"], {})) == Estimate(starts_in_ms=starts_in_ms, basis="drain_rate")


def test_without_a_measured_rate_past_runs_do() -> None:
    assert start(3, STILL, said(["echo:v1"], {"echo": 100})) == Estimate(starts_in_ms=200, basis="past_runs")
    assert start(3, STILL, said(["echo:v1"], {})) is None


AFTER_A_PAUSE = STILL._replace(since_ms=9_500, per_s=0.7, waiting=10)


@pytest.mark.parametrize(
    ("worker", "pace", "basis"),
    [
        (said(["echo:v1"], {"echo": 1_000}), AFTER_A_PAUSE, "past_runs"),
        (said(["echo:v1"], {"echo": 1_000}), AFTER_A_PAUSE._replace(per_s=3.0), "drain_rate"),
        (said(["echo:v1"], {"echo": 1_000}), AFTER_A_PAUSE._replace(lanes=2), "drain_rate"),
        (said(["echo:v1"], {"echo": 1_000}, queues=["default", "slow"]), AFTER_A_PAUSE, "drain_rate"),
        (said(["echo:v1"], {"echo": 1_000}, beat_ms=13_000), AFTER_A_PAUSE, "past_runs"),  # from before it went on
        (said(["echo:v1"], {"echo": 1_000}, slots={}), AFTER_A_PAUSE, "drain_rate"),
    ],
)
def test_a_pause_that_is_over_delays_no_start(worker: WorkerInfo, pace: Pace, basis: str) -> None:
    found = start(9, pace, worker)
    assert found is not None
    assert found.basis == basis
    assert found.starts_in_ms == 5_000 or basis == "drain_rate"


MOVING = Pace(10_000, 9_500, 3, 10.0, 1_000, 1, 4)
"""100 ms for each of its tasks, of four tenants' in turn."""


@pytest.mark.parametrize(
    ("turns", "position", "starts_in_ms"),
    [
        (Turns(), 4, 2_000),
        (Turns(share=0.25), 4, 2_000),
        (Turns(share=0.5), 4, 1_000),  # every other task is its tenant's
        (Turns(share=0.05), 4, 10_000),
        (Turns(most=100), 4, 2_000),
        (Turns(most=1), 4, 5_000),  # one after the other, a second each
        (Turns(most=2), 4, 2_500),
        (Turns(most_of_type=4), 4, 5_000),  # twenty of all tenants, four at a time
        (Turns(most_of_type=40), 4, 2_000),
        (Turns(most=2, most_of_type=4), 4, 5_000),
    ],
)
def test_weights_and_limits_are_reckoned_with(turns: Turns, position: int, starts_in_ms: int) -> None:
    queued = record(Status.QUEUED, position=position)
    found = estimates.start(queued, MOVING, [said(["echo:v1"], {"echo": 1_000})], turns)
    assert found is not None
    assert found.starts_in_ms == starts_in_ms
    assert found.basis == ("drain_rate" if starts_in_ms in (1_000, 2_000, 10_000) else "past_runs")


@pytest.mark.parametrize(
    ("barred", "run_ms", "starts_in_ms"),
    [("tenant", {"echo": 1_000}, 5_000), ("tenant", {}, None), ("", {}, 2_000), ("type", {}, None)],
)
def test_where_a_limit_keeps_it_and_no_run_is_known_nothing_is_said(
    barred: str, run_ms: dict[str, int], starts_in_ms: int | None
) -> None:
    queued = record(Status.QUEUED, position=4, barred=barred)
    found = estimates.start(queued, MOVING, [said(["echo:v1"], run_ms)], Turns(most=1))
    assert (found and found.starts_in_ms) == starts_in_ms


async def test_limits_and_weights_are_those_of_the_policy(
    gateway_of: Callable[..., Door], worker: Worker, tmp_path: Path
) -> None:
    """And a type's, as it is published."""
    policy = tmp_path / "policy.toml"
    policy.write_text("[tenants.slow]\nconcurrency = 2\n[tenants.gold]\nweight = 3\n")
    worker.info = msgspec.structs.replace(worker.info, run_ms={"echo": 60_000}, slots={"echo": 100})
    await worker.beat()
    async with client_of(gateway_of(tenant_header="X-Tenant", policy_file=policy, status_cache_ms=0)) as http:

        async def starts(tenant: str) -> int:
            body = {"type": "echo", "payload": {"text": ""}}
            accepted = await http.post("/tasks", json=body, headers={"X-Tenant": tenant})
            assert accepted.status_code == 202
            shown = await http.get(accepted.headers["location"], headers={**FRESH, "X-Tenant": tenant})
            return int(shown.json()["estimate"]["starts_in_ms"])

        assert await starts("fast") == 600
        assert await starts("slow") == 30_000, "half of two at a time"
        assert await starts("slow") == 60_000


@pytest.mark.parametrize(
    ("more", "left_ms"),
    [
        ({}, 10_000),
        ({"alive_ms": None}, None),
        ({"health": "paused"}, None),
        ({"health": "stalled"}, 10_000),
    ],
)
async def test_what_does_not_run_has_no_time_left(store: Store, more: dict[str, Any], left_ms: int | None) -> None:
    progress = b'{"current":1,"total":2,"at_ms":20000}'
    running = record(**{"progress": progress, "health": "", "alive_ms": 1, **more})
    _, found = await estimates.Estimates(store).of(running)
    assert (found and found.remaining_ms) == left_ms


def test_where_nobody_serves_it_nothing_is_said() -> None:
    moving = STILL._replace(per_s=5.0)
    assert start(0, moving) is None
    assert start(0, moving, said(["other:v1"], {})) is None
    assert start(0, moving, said(["echo:v1"], {}, queues=["second"])) is None
    assert start(0, moving, said(["echo:v1"], {}, beat_ms=1_000)) is None


async def test_views_carry_them_and_the_etag_does_not(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "RENEW_S", 0.0)
    worker.info = msgspec.structs.replace(worker.info, run_ms={"echo": 60_000}, slots={"echo": 1})
    await worker.beat()
    async with client_of(gateway_of()) as http:
        task = await submit(http)
        assert task["estimate"] is None, "nothing is read for a 202"
        url = f"/tasks/{task['id']}"

        async def read() -> httpx.Response:
            return await http.get(url, headers=FRESH)

        queued = await read()
        assert queued.json()["estimate"] == {"starts_in_ms": 60_000, "remaining_ms": None, "basis": "past_runs"}
        assert queued.headers["etag"] == 'W/"1"'
        [claimed] = await worker.claim()
        await next_ms(worker.store)  # within its first millisecond nothing has a pace
        running = (await read()).json()["estimate"]
        assert running["basis"] == "past_runs"
        assert 30_000 < running["remaining_ms"] <= 60_000
        await worker.report(claimed, progress=b'{"current":1,"total":2}')
        assert (await read()).json()["estimate"]["basis"] == "progress"
        part = await http.get(url, params={"fields": "estimate(basis)"}, headers=FRESH)
        assert part.json() == {"id": task["id"], "estimate": {"basis": "progress"}}
        await worker.finish(claimed)
        assert (await read()).json()["estimate"] is None
        assert [item["estimate"] for item in (await http.get("/tasks")).json()["items"]] == [None]


async def test_tasks_cost_no_read_of_their_own(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of a queue is read once for all its tasks."""
    monkeypatch.setattr(estimates, "RENEW_S", 600.0)
    monkeypatch.setattr(estimates, "OLD_S", 600.0)
    async with client_of(gateway_of()) as http:
        tasks = [(await submit(http))["id"] for _ in range(20)]
        await http.get(f"/tasks/{tasks[0]}")
        await redis_client.config_resetstat()
        for task_id in tasks[1:]:
            assert (await http.get(f"/tasks/{task_id}")).status_code == 200
        assert (await redis_client.info("commandstats"))["cmdstat_evalsha"]["calls"] <= 19 + 5


async def test_without_redis_there_is_none_and_nothing_else_is_wrong(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = gateway_of()

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable

    monkeypatch.setattr(door.gateway.store, "pace", away)
    async with client_of(door) as http:
        task = await submit(http)
        for _ in range(2):
            answer = await http.get(f"/tasks/{task['id']}", headers=FRESH)
            assert (answer.status_code, answer.json()["estimate"]) == (200, None)


@pytest.mark.parametrize(
    ("types", "states", "stage"),
    [
        (["other:1"], "busy busy", "waiting for a worker"),
        (["echo:1"], "starting starting", "starting a child"),
        (["echo:1"], "busy starting", "starting a child"),
        (["echo:1"], "busy busy starting", "waiting for room to run"),
    ],
)
def test_a_queued_task_says_what_it_waits_for(types: list[str], states: str, stage: str) -> None:
    worker = said(types, {}, children=[{"state": state} for state in states.split()])
    assert estimates.waits_for(record(Status.QUEUED), [worker]) == stage


@pytest.mark.parametrize(
    ("barred", "stage"),
    [
        ("key", "waiting for its concurrency key"),
        ("tenant", "waiting for its tenant's limit"),
        ("type", "waiting for its type's limit"),
    ],
)
def test_a_queued_task_says_which_limit_keeps_it(barred: str, stage: str) -> None:
    kept = record(Status.QUEUED, barred=barred, alive_ms=None)
    busy = said(["echo:1"], {}, children=[{"state": "busy"}] * 2)
    assert estimates.waits_for(kept, [busy]) == stage
    assert estimates.waits_for(kept, []) == "waiting for a worker", "no limit matters where nobody serves it"


def test_each_thing_that_a_task_may_wait_for_has_a_tag_of_its_own() -> None:
    """A reader with the tag of one learns of another."""
    words = [*WAITS_FOR_A_LIMIT.values(), WAITS_FOR_A_WORKER, estimates.WAITS_FOR_ROOM, "starting a child"]
    queued = [record(Status.QUEUED, stage=each, health="", alive_ms=None) for each in words]
    assert len({decided_at_the_read(each) for each in queued}) == len(words)


async def test_what_a_queued_task_waits_for_is_in_its_status(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    shown = (await http.get(f"/tasks/{task['id']}", headers=FRESH)).json()["stage"]
    assert shown in ("starting a child", "waiting for room to run"), "its worker serves it, and has no children"

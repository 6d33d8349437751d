"""`GET /queues`: depth by state, age, speed, limits and shares; and nothing of another tenant's."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from app import looks
from app.door import Door
from taskgate.contract import keys
from taskgate.contract.models import Served
from taskgate.contract.shares import Share, shares
from tests.api.conftest import Worker, client_of, submit
from tests.conftest import eventually

POLICY = """
[queues.default]
limit_tasks = 1_000
limit_wait_s = 90
on_full = "wait"

[queues.hooks]
limit_bytes = "1 MiB"
on_full = "spill"
spill_bytes = "2 MiB"

[tenants."*"]
limit_tasks = 50
limit_bytes = "3 MiB"
rate_per_s = 20
burst = 40

[tenants.gold]
weight = 3
concurrency = 7
"""


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "FRESH_S", 0.0)
    monkeypatch.setattr(looks, "REST", 0)


@pytest.fixture
def policy_file(tmp_path: Path) -> str:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return str(path)


TASK = {"type": "any", "payload": 1}


async def queue_of(http: httpx.AsyncClient, name: str = "default", **headers: str) -> dict[str, Any]:
    answer = await http.get("/queues", params={"queue": name}, headers=headers)
    assert answer.status_code == 200, answer.text
    [found] = answer.json()["items"]
    return dict(found)


async def test_every_state_is_counted(http: httpx.AsyncClient, worker: Worker) -> None:
    for _ in range(5):
        await submit(http)
    await submit(http, delay_s=60)
    _, dead, retried = await worker.claim(3)
    await worker.finish(dead, "failed")
    await worker.finish(retried, "retry", retry_delay_ms=60_000, max_attempts=3)
    found = await queue_of(http)
    counted = {state: found[state] for state in ("waiting", "queued", "scheduled", "retrying", "running", "dead")}
    assert counted == {"waiting": 4, "queued": 2, "scheduled": 1, "retrying": 1, "running": 1, "dead": 1}
    assert found["bytes"] > 4 * 2048
    assert 0 <= found["oldest_age_ms"] < 60_000
    assert found["on_full"] == "refuse"
    assert found["limits"] == [
        {"limit": "queue-tasks", "max": 100_000, "used": 4},
        {"limit": "queue-bytes", "max": 256 * 1024**2, "used": found["bytes"]},
    ]
    assert found["types"][0]["type"] == "echo"
    assert {each["type"] for each in found["types"]} == {"echo", "any"}, "what is published for it is shown too"


async def test_an_idle_queue_is_shown_with_its_limits(http: httpx.AsyncClient, worker: Worker) -> None:
    """It is what somebody who asks before a flood wants to know."""
    found = await queue_of(http)
    assert (found["waiting"], found["oldest_age_ms"], found["drain_per_s"]) == (0, None, None)
    assert found["estimated_wait_ms"] == 0
    assert found["limits"][0] == {"limit": "queue-tasks", "max": 100_000, "used": 0}
    assert found["tenants"] == []


async def test_how_fast_it_moves_and_how_long_that_takes(http: httpx.AsyncClient, worker: Worker) -> None:
    for _ in range(30):
        await submit(http)
    assert (await queue_of(http))["estimated_wait_ms"] is None, "nothing has left it yet"

    async def claimed() -> dict[str, Any]:
        await worker.claim()
        return await queue_of(http)

    found = await eventually(claimed, lambda queue: queue["drain_per_s"], within_s=30, every_s=0.2)
    expected_ms = found["waiting"] / found["drain_per_s"] * 1000
    assert found["estimated_wait_ms"] == pytest.approx(expected_ms, rel=0.01)


async def test_limits_and_shares_are_those_of_the_policy(
    gateway_of: Callable[..., Door], worker: Worker, policy_file: str
) -> None:
    async with client_of(gateway_of(policy_file=policy_file, tenant_header="X-Tenant")) as http:
        for tenant in ("gold", "gold", "gold", "lead", "tin"):
            answer = await http.post("/tasks", json={"type": "any", "payload": 1}, headers={"X-Tenant": tenant})
            assert answer.status_code == 202, answer.text
    async with client_of(gateway_of(policy_file=policy_file)) as operator:
        found = await queue_of(operator)
        assert found["on_full"] == "wait"
        limits = {each["limit"]: each for each in found["limits"]}
        assert limits["queue-tasks"] == {"limit": "queue-tasks", "max": 1_000, "used": 5}
        assert limits["queue-wait"] == {"limit": "queue-wait", "max": 90.0, "used": None}
        assert limits["queue-bytes"]["max"] == 256 * 1024**2, "what the policy leaves out is that of the settings"
        found_shares = {each["tenant"]: (each["ready"], each["weight"], each["share"]) for each in found["tenants"]}
        assert found_shares == {"gold": (3, 3.0, 0.6), "lead": (1, 1.0, 0.2), "tin": (1, 1.0, 0.2)}
        assert found["tenants"][0]["tenant"] == "gold", "who has most ready comes first"
        assert (found["tenants"][0]["waiting"], found["tenants"][0]["concurrency"]) == (3, 7)
        assert found["more_tenants"] == 0
        own = (await operator.get("/queues")).json()["tenant"]
        assert (own["tenant"], own["waiting"], own["rate_per_s"], own["burst"]) == ("default", 0, 20.0, 40)
        assert own["limits"] == [
            {"limit": "tenant-tasks", "max": 50, "used": 0},
            {"limit": "tenant-bytes", "max": 3 * 1024**2, "used": 0},
        ]
        hooks = await queue_of(operator, "hooks")
        assert {each["limit"]: each["max"] for each in hooks["limits"]} == {
            "queue-tasks": 100_000,
            "queue-bytes": 1024**2,
            "spill-tasks": 10_000,
            "spill-bytes": 2 * 1024**2,
        }


async def test_a_tenant_sees_itself_and_nobody_else(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(tenant_header="X-Tenant")) as http:
        for tenant, queue in (("acme", "default"), ("acme", "default"), ("rival", "default"), ("rival", "rivals-own")):
            task = {"type": "any", "payload": 1, "queue": queue}
            assert (await http.post("/tasks", json=task, headers={"X-Tenant": tenant})).status_code == 202
        for tenant, ready in (("acme", 2), ("rival", 1), ("newcomer", 0), ("default", 0)):
            answer = await http.get("/queues", headers={"X-Tenant": tenant})
            shown = {each["queue"]: each for each in answer.json()["items"]}
            assert shown["default"]["waiting"] == 3, "it is what the limits count, and concerns everybody"
            assert [(each["tenant"], each["ready"]) for each in shown["default"]["tenants"]] == [(tenant, ready)][
                :ready
            ]
            assert shown["default"]["more_tenants"] == 2 - bool(ready)
            assert ("rivals-own" in shown) == (tenant == "rival")
            assert answer.json()["tenant"]["waiting"] == {"acme": 2, "rival": 2}.get(tenant, 0)
            others = {"acme", "rival"} - {tenant}
            assert not any(f'"{other}' in answer.text for other in others), answer.text
        unnamed = (await http.get("/queues")).json()
        assert unnamed["tenant"]["tenant"] == "default"
        assert unnamed["items"][0]["tenants"] == []
    async with client_of(gateway_of()) as operator:
        assert {each["queue"] for each in (await operator.get("/queues")).json()["items"]} == {"default", "rivals-own"}


async def test_what_is_at_its_limit_is_shown_with_it(
    gateway_of: Callable[..., Door], worker: Worker, policy_file: str
) -> None:
    Path(policy_file).write_text("[tenants.gold]\nconcurrency = 1\n")
    await worker.publish(limited={})
    [info] = [each for each in await worker.store.types() if each.type == "limited"]
    await worker.store.announce([msgspec.structs.replace(info, concurrency=2)])
    worker.info = msgspec.structs.replace(worker.info, types=["any:v1", "limited:v1"])
    worker.served = [Served("default", "any", "sync"), Served("default", "limited", "sync", 2)]
    of_gold = shares({"gold": Share(concurrency=1)})
    async with client_of(gateway_of(policy_file=policy_file, tenant_header="X-Tenant")) as http:

        async def submitted(task_type: str, tenant: str) -> str:
            task = {"type": task_type, "payload": 1}
            answer = await http.post("/tasks", json=task, headers={"X-Tenant": tenant})
            assert answer.status_code == 202, answer.text
            return str(answer.headers["location"])

        async def stage(location: str, tenant: str) -> str:
            shown = await http.get(location, headers={"X-Tenant": tenant, "Cache-Control": "no-cache"})
            return str(shown.json()["stage"])

        capped = [await submitted("any", "gold") for _ in range(3)][-1]
        closed = [await submitted("limited", "tin") for _ in range(5)][-1]
        await worker.beat()
        taken = await worker.store.claim(
            0, worker.info.id, served=worker.served, free_sync=9, free_async=0, lease_ms=60_000, shares=of_gold
        )
        assert len(taken) == 3
        assert await stage(capped, "gold") == "waiting for its tenant's limit"
        assert await stage(closed, "tin") == "waiting for its type's limit"
        own = await queue_of(http, **{"X-Tenant": "gold"})
        assert [(each["tenant"], each["ready"]) for each in own["tenants"]] == [("gold", 2)]
    async with client_of(gateway_of(policy_file=policy_file)) as operator:
        found = await queue_of(operator)
        rows = {each["tenant"]: each for each in found["tenants"]}
        assert {name: (row["ready"], row["running"], row["concurrency"]) for name, row in rows.items()} == {
            "gold": (2, 1, 1),
            "tin": (3, 2, None),
        }
        types = {each["type"]: (each["ready"], each["running"], each["concurrency"]) for each in found["types"]}
        assert types["any"] == (2, 1, None)
        assert types["limited"] == (3, 2, 2)


async def test_a_crowd_is_counted_and_the_largest_are_named(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "LOOKED_AT", 5)
    monkeypatch.setattr(looks, "SOUGHT", 3)
    async with client_of(gateway_of(tenant_header="X-Tenant")) as http:
        for n in range(40):
            for _ in range(3 if n in (11, 22, 33) else 1):
                task = {"type": "any", "payload": 1}
                assert (await http.post("/tasks", json=task, headers={"X-Tenant": f"t{n}"})).status_code == 202
        own = await queue_of(http, **{"X-Tenant": "t22"})
        assert [(each["tenant"], each["ready"], each["share"]) for each in own["tenants"]] == [("t22", 3, 0.025)]
    async with client_of(gateway_of()) as operator:
        found = await queue_of(operator)
        assert {each["tenant"] for each in found["tenants"][:3]} == {"t11", "t22", "t33"}
        assert len(found["tenants"]) + found["more_tenants"] == 40
        assert found["more_tenants"] >= 32


async def test_a_second_look_costs_redis_nothing(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "FRESH_S", 600.0)
    async with client_of(gateway_of()) as http:
        first = (await http.get("/queues")).json()
        await submit(http)
        await redis_client.config_resetstat()
        assert (await http.get("/queues")).json() == first
        assert "cmdstat_evalsha" not in await redis_client.info("commandstats")
    async with client_of(gateway_of(tenant_header="X-Tenant")) as http:
        for tenant in ("a", "b"):
            assert (await http.post("/tasks", json=TASK, headers={"X-Tenant": tenant})).status_code == 202
        await redis_client.config_resetstat()
        for _ in range(3):
            for tenant in ("a", "b", "idle"):
                await http.get("/queues", headers={"X-Tenant": tenant})
        calls = (await redis_client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        assert calls == 3, "one of all, one of each who has tasks"


async def test_many_at_once_share_one_reading(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of everything, of one's own, and of a queue that is not looked at otherwise."""
    monkeypatch.setattr(looks, "FRESH_S", 600.0)
    async with client_of(gateway_of(tenant_header="X-Tenant")) as http:
        tasks = [TASK | {"queue": f"q{n:03}"} for n in range(130)]
        sent = (http.post("/tasks", json=task, headers={"X-Tenant": "a"}) for task in tasks)
        assert {answer.status_code for answer in await asyncio.gather(*sent)} == {202}

    async def calls(params: dict[str, str], **settings: str) -> int:
        async with client_of(gateway_of(**settings)) as client:
            await redis_client.config_resetstat()
            asked = (client.get("/queues", params=params, headers={"X-Tenant": "a"}) for _ in range(5))
            assert {len(answer.json()["items"]) for answer in await asyncio.gather(*asked)} == {1 if params else 128}
            return int((await redis_client.info("commandstats"))["cmdstat_evalsha"]["calls"])

    assert await calls({}) == 16, "a call looks at 8 queues: it holds Redis up"
    assert await calls({}, tenant_header="X-Tenant") == 16 + 16
    assert await calls({"queue": "q129"}) == 16 + 1
    assert await calls({"queue": "q129"}, tenant_header="X-Tenant") == 16 + 1 + 1


async def test_a_dear_reading_is_good_for_longer_within_a_bound(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "REST", 10**9)
    async with client_of(gateway_of()) as http:
        first = (await http.get("/queues")).json()
        await submit(http)
        assert (await http.get("/queues")).json() == first
    monkeypatch.setattr(looks, "OLDEST_S", 0.0)
    async with client_of(gateway_of()) as http:
        first = (await http.get("/queues")).json()
        await submit(http)
        assert (await http.get("/queues")).json() != first, "but never longer than a bound"


async def test_a_crowd_of_tenants_does_not_hold_the_gateway_up(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have their turn between any two parts of what is gone through."""
    tenants = 5_000
    await redis_client.hset(keys.usage(0), mapping={f"waiting:tenant:t{n}": n for n in range(tenants)})
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def gathered() -> tuple[Sequence[str], int]:
        usage = await worker.store.usage(0)
        running = asyncio.create_task(other())
        before = turns
        _, waiting = await looks._gathered([usage])
        first = await looks._first(3, waiting, lambda tenant: (-waiting[tenant], tenant))
        running.cancel()
        return first, turns - before

    first, others = await gathered()
    assert first == ["t4999", "t4998", "t4997"]
    assert others >= 8


async def test_partitions_are_added_up(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(partitions=4)) as http:
        for _ in range(24):
            await submit(http)
        found = await queue_of(http)
        assert (found["waiting"], found["queued"]) == (24, 24)
        assert [(each["tenant"], each["ready"]) for each in found["tenants"]] == [("default", 24)]
        assert found["limits"][0]["used"] == 24


async def test_queues_that_clients_made_up_do_not_flood_the_answer(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis
) -> None:
    async with client_of(gateway_of()) as http:
        for n in range(140):
            await submit(http, queue=f"q{n}")
        await submit(http, queue="q77")
        body = (await http.get("/queues")).json()
        assert (len(body["items"]), body["more_queues"]) == (128, 141 - 128)
        assert body["items"][0]["queue"] == "q77", "those with most waiting come first"
        left_out = {f"q{n}" for n in range(140)} - {each["queue"] for each in body["items"]}
        for name in left_out:
            found = await queue_of(http, name)
            assert (found["queue"], found["waiting"], found["tenants"][0]["ready"]) == (name, 1, 1)
        assert (await http.get("/queues", params={"queue": "no such"})).json()["items"] == []


async def test_the_operators_queues_stay_however_many_clients_name(
    gateway_of: Callable[..., Door], worker: Worker, policy_file: str, redis_client: Redis
) -> None:
    """Those that the policy or a supervisor names, in the answer and asked for by name, also when idle."""
    await worker.beat()
    await redis_client.hset(keys.usage(0), mapping={f"waiting:queue:q{n:03}": 2 for n in range(160)})
    await redis_client.hset(keys.usage(0), "running:queue:runs", "1")
    async with client_of(gateway_of(policy_file=policy_file)) as http:
        body = (await http.get("/queues")).json()
        names = [each["queue"] for each in body["items"]]
        assert (len(names), body["more_queues"]) == (128, 160 + 1 + 2 - 128)
        assert names[-2:] == ["default", "hooks"], "those with most waiting come first all the same"
        for name in ("default", "hooks", "runs"):
            assert (await queue_of(http, name))["queue"] == name
        assert (await http.get("/queues", params={"queue": "nobodys"})).json()["items"] == []
    Path(policy_file).write_text("".join(f"[queues.p{n:03}]\nlimit_tasks = 9\n" for n in range(140)))
    async with client_of(gateway_of(policy_file=policy_file)) as http:
        names = [each["queue"] for each in (await http.get("/queues")).json()["items"]]
        assert sorted(names) == ["default"] + [f"p{n:03}" for n in range(140)]


async def test_the_age_is_that_of_the_oldest_whatever_its_priority(http: httpx.AsyncClient, worker: Worker) -> None:
    old = (await submit(http, priority=0))["id"]
    [record] = await worker.store.read([old])
    assert record is not None
    made_ms = record.created_ms
    await eventually(worker.store.now_ms, lambda now_ms: now_ms > made_ms + 200)
    await submit(http, priority=9)
    found = await queue_of(http)
    assert (found["oldest_age_ms"] >= 150, found["oldest_age_at_least"]) == (True, False)


async def test_what_runs_in_a_queue_is_no_longer_ready(http: httpx.AsyncClient, worker: Worker) -> None:
    worker.served = [*worker.served, Served("second", "echo", "sync")]
    await submit(http, queue="second")
    assert (await queue_of(http, "second"))["types"] == [
        {"type": "echo", "ready": 1, "running": 0, "concurrency": None}
    ]
    await worker.claim()
    found = await queue_of(http, "second")
    assert (found["running"], found["tenants"], found["types"]) == (1, [], [])


async def test_while_redis_is_away_it_is_said(gateway_of: Callable[..., Door]) -> None:
    async with client_of(gateway_of(redis_url="unix:///nowhere/at/all.sock")) as http:
        for _ in range(2):
            answer = await http.get("/queues")
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/dependency-unavailable")

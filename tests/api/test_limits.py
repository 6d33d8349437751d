"""What a caller sees of limits: which one refused it, when to come again, and what is left, in every answer."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.door import Door
from app.errors import problem_of
from taskgate.contract.errors import QueueFull
from taskgate.contract.store import Store
from tests.api.conftest import Worker, client_of
from tests.conftest import eventually

TASK = {"type": "any", "payload": 1}
TASK_BYTES = 1 + 2048
ITEM = re.compile(r'"([a-z-]+)"((?:;[a-z]+=(?:\d+|"[a-z-]+"))*)')
POLICY = """
[queues.small]
limit_tasks = 2
limit_bytes = 10_000

[tenants."*"]
limit_tasks = 3
rate_per_s = 0.001
burst = 4

[tenants.free]
limit_tasks = 1_000_000
rate_per_s = 1_000_000
"""


def parsed(field: str) -> dict[str, dict[str, str]]:
    """A structured list of strings with parameters (RFC 9651), by string; nothing else may stand in it."""
    found = {}
    for item in field.split(", "):
        whole = ITEM.fullmatch(item)
        assert whole is not None, item
        found[whole[1]] = dict(part.split("=") for part in whole[2].split(";")[1:])
    return found


def limits_of(answer: httpx.Response) -> dict[str, dict[str, str]]:
    policy, state = parsed(answer.headers["RateLimit-Policy"]), parsed(answer.headers["RateLimit"])
    assert list(policy) == list(state)
    return {name: policy[name] | state[name] for name in policy}


@pytest.fixture
async def http(gateway_of: Callable[..., Door], worker: Worker, tmp_path: Path) -> httpx.AsyncClient:
    (tmp_path / "policy.toml").write_text(POLICY)
    return client_of(gateway_of(policy_file=tmp_path / "policy.toml", tenant_header="X-Tenant"))


async def submit(http: httpx.AsyncClient, tenant: str = "a", key: str = "", **more: object) -> httpx.Response:
    headers = {"X-Tenant": tenant} | ({"Idempotency-Key": key} if key else {})
    return await http.post("/tasks", json=TASK | more, headers=headers)


async def test_without_a_policy_the_queues_limits_are_told(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(queue_limit_bytes=1_000_000)) as http:
        answer = await http.post("/tasks", json=TASK)
    assert answer.status_code == 202
    assert limits_of(answer) == {
        "queue-tasks": {"q": "100000", "qu": '"concurrent-requests"', "r": "99999"},
        "queue-bytes": {"q": "1000000", "qu": '"content-bytes"', "r": str(1_000_000 - TASK_BYTES)},
    }


async def test_every_limit_in_force_is_told_in_every_answer(http: httpx.AsyncClient) -> None:
    answer = await submit(http, queue="small", key="k")
    assert limits_of(answer) == {
        "queue-tasks": {"q": "2", "qu": '"concurrent-requests"', "r": "1"},
        "queue-bytes": {"q": "10000", "qu": '"content-bytes"', "r": str(10_000 - TASK_BYTES)},
        "tenant-tasks": {"q": "3", "qu": '"concurrent-requests"', "r": "2"},
        "rate": {"q": "4", "w": "4000", "r": "3", "t": "1000"},
    }
    await submit(http, queue="small")
    replay = await submit(http, queue="small", key="k")
    assert (replay.status_code, replay.headers["Idempotent-Replayed"]) == (202, "true")
    assert {name: each["r"] for name, each in limits_of(replay).items()} == {
        "queue-tasks": "0", "queue-bytes": str(10_000 - 2 * TASK_BYTES), "tenant-tasks": "1", "rate": "2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("used", "more", "slug", "limit"),
    [
        (2, {"queue": "small"}, "queue-full", "queue-tasks"),
        (0, {"queue": "small", "payload": "x" * 9_000}, "queue-full", "queue-bytes"),
        (3, {"queue": "small", "tenant": "free"}, "queue-full", "queue-tasks"),
        (3, {}, "queue-quota-exceeded", "tenant-tasks"),
    ],
)
async def test_the_problem_names_the_limit_and_when_to_come_again(
    http: httpx.AsyncClient, used: int, more: dict[str, object], slug: str, limit: str
) -> None:
    for _ in range(used):
        await submit(http, **more)  # type: ignore[arg-type]
    answer = await submit(http, **more)  # type: ignore[arg-type]
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (429, f"/problems/{slug}")
    assert (problem["limit"], problem["violated-policies"]) == (limit, [limit])
    refused = limits_of(answer)[limit]
    assert int(refused["r"]) < (TASK_BYTES + 9_000 if limit == "queue-bytes" else 1)
    assert 1 <= int(refused["t"]) <= int(answer.headers["Retry-After"]) <= 72
    assert answer.headers["Cache-Control"] == "no-store"
    assert (await submit(http, tenant="free")).status_code == 202


async def test_too_fast_is_a_problem_of_its_own(http: httpx.AsyncClient, worker: Worker, live_store: Store) -> None:
    for _ in range(2):
        assert [(await submit(http)).status_code for _ in range(2)] == [202, 202]
        await worker.claim(2)
    answer = await submit(http)
    problem = answer.json()
    assert (answer.status_code, problem["type"], problem["limit"]) == (429, "/problems/rate-limited", "rate")
    assert problem["violated-policies"] == ["rate"]
    assert 1 <= int(limits_of(answer)["rate"]["t"]) <= int(answer.headers["Retry-After"]) <= 72
    assert (await live_store.usage(0)).get("waiting:tenant:a") is None, "nothing was kept"


async def test_retry_after_is_whole_and_spread(http: httpx.AsyncClient) -> None:
    """Up to a fifth later than room is expected, so that who was told the same does not come at once."""
    for _ in range(2):
        await submit(http, queue="small")
    answers = await asyncio.gather(*(submit(http, tenant="free", queue="small", payload=n) for n in range(60)))
    waits = [int(answer.headers["Retry-After"]) for answer in answers]
    told = [int(limits_of(answer)["queue-tasks"]["t"]) for answer in answers]
    assert all(before <= after <= before * 1.2 + 1 for before, after in zip(told, waits, strict=True))


def test_the_jitter_spreads() -> None:
    room = QueueFull(limit="queue-tasks", queue="q", tenant="t", retry_after_s=29.5)
    waits = [int(problem_of(room).headers["Retry-After"]) for _ in range(300)]
    assert set(waits) == {30, 31, 32, 33, 34, 35, 36}


async def test_an_expected_wait_that_is_too_long_is_told_in_its_429_alone(
    gateway_of: Callable[..., Door], worker: Worker, live_store: Store
) -> None:
    async with client_of(gateway_of(queue_limit_wait_s=0.5)) as http:
        for _ in range(20):
            before = await http.post("/tasks", json=TASK)
            assert before.status_code == 202
        assert "queue-wait" not in limits_of(before)
        await worker.claim(2)
        started = await live_store.now_ms()
        await eventually(live_store.now_ms, lambda now: now - started > 1000)  # a window of a second closes
        await worker.claim(2)
        refused = await http.post("/tasks", json=TASK)
    assert (refused.status_code, refused.json()["limit"]) == (429, "queue-wait")
    assert limits_of(refused)["queue-wait"] == {
        "q": "1", "qu": '"seconds"', "r": "0", "t": limits_of(refused)["queue-wait"]["t"],
    }  # fmt: skip
    assert int(refused.headers["Retry-After"]) >= 1


async def test_other_refusals_say_nothing_of_limits(http: httpx.AsyncClient) -> None:
    await submit(http, key="k")
    for answer in (
        await submit(http, key="k", payload=2),
        await submit(http, type="none"),
        await http.post("/tasks", content=b"{", headers={"Content-Type": "application/json"}),
    ):
        assert 400 <= answer.status_code < 500
        assert not {name for name in answer.headers if name.startswith("ratelimit")}

"""What keeps tasks back is told by the running service, to whom it concerns."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, eventually
from tests.system.rig import Rig, serving

pytestmark = pytest.mark.full

POLICY = """
[tenants.slow]
concurrency = 1

[tenants.gold]
weight = 3
"""
TENANT = "X-Tenant"


@pytest.fixture
async def service(own_server: Server, tmp_path: Path) -> AsyncIterator[Rig]:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    settings = {"TASKGATE_POLICY_FILE": str(policy), "TASKGATE_TENANT_HEADER": TENANT, "TASKGATE_WORKER_PROCESSES": "2"}
    async with serving(own_server, tmp_path, **settings) as rig:
        yield rig


async def test_a_tenant_at_its_limit_is_told_so_until_it_is_not(service: Rig) -> None:
    async def submit(tenant: str, ms: int, **more: Any) -> str:
        body = {"type": "sleeper", "payload": {"ms": ms}, **more}
        answer = await service.http.post("/tasks", json=body, headers={TENANT: tenant})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def task(tenant: str, task_id: str) -> dict[str, Any]:
        headers = {TENANT: tenant, "Cache-Control": "no-cache"}
        return dict((await service.http.get(f"/tasks/{task_id}", headers=headers)).json())

    async def share(tenant: str) -> dict[str, Any]:
        [queue] = (await service.http.get("/queues?queue=default", headers={TENANT: tenant})).json()["items"]
        return next(iter(queue["tenants"]), {})

    first, second = await submit("slow", 60_000), await submit("slow", 1)
    await eventually(lambda: task("slow", first), lambda found: found["status"] == "running", within_s=30)
    kept = await eventually(
        lambda: task("slow", second), lambda found: found["stage"] == "waiting for its tenant's limit", within_s=30
    )
    assert kept["status"] == "queued"
    row = await eventually(lambda: share("slow"), lambda row: row.get("running") == 1, within_s=30)
    assert (row["tenant"], row["ready"], row["concurrency"]) == ("slow", 1, 1)

    keyed = [await submit("gold", 60_000, concurrency_key="account") for _ in range(2)]
    await eventually(lambda: task("gold", keyed[0]), lambda found: found["status"] == "running", within_s=30)
    waits = await task("gold", keyed[1])
    assert (waits["stage"], waits["queue_position"], waits["estimate"]) == (
        "waiting for its concurrency key",
        None,
        None,
    )

    for tenant, task_id in (("slow", first), ("gold", keyed[0])):
        await service.http.post(f"/tasks/{task_id}/cancel", headers={TENANT: tenant})
    await eventually(lambda: task("slow", second), lambda found: found["status"] == "succeeded", within_s=30)
    await eventually(lambda: task("gold", keyed[1]), lambda found: found["status"] == "running", within_s=30)
    await service.http.post(f"/tasks/{keyed[1]}/cancel", headers={TENANT: "gold"})

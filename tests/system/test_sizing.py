"""The formulas of docs/operations.md against what a service under load really holds."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest
import redis

from taskgate import sizing
from taskgate.settings import load
from tests.conftest import Server, eventually, server_of
from tests.processes import open_files
from tests.system.rig import Rig
from tests.system.sizing_jobs import POOL

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

SIZES = {"TASKGATE_WORKER_PROCESSES": "3", "TASKGATE_ASYNC_PROCESSES": "1", "TASKGATE_ASYNC_SLOTS": "12"}
SETTINGS = load(SIZES)
STREAMS = 60
SUBMISSIONS = 40
"""Of each kind: more than run at a time."""
OWN_FILES = 20
"""Of a supervisor without children and connections to Redis."""


@contextlib.asynccontextmanager
async def streams(rig: Rig, task_id: str) -> AsyncIterator[httpx.AsyncClient]:
    """So many open event streams, each on a connection of its own."""
    limits = httpx.Limits(max_connections=STREAMS, max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(base_url=rig.url, trust_env=False, timeout=30, limits=limits) as http,
        contextlib.AsyncExitStack() as opened,
    ):
        for _ in range(STREAMS):
            answer = await opened.enter_async_context(http.stream("GET", f"/tasks/{task_id}/events"))
            assert answer.status_code == 200
        yield http


async def clients(server: Server) -> Counter[str]:
    """Open connections by the names that they gave themselves."""
    with redis.Redis.from_url(server.url) as client:
        return Counter(str(each["name"]) for each in client.client_list())


async def test_a_service_under_load_stays_below_its_formulas(rig: Rig) -> None:
    with server_of("valkey") as database:
        rig.settings |= SIZES | {"DATABASE": database.url, "TASKGATE_HANDLERS": "tests.system.sizing_jobs"}
        supervisor = await rig.worker()
        gateway = await rig.gateway()
        ids = await asyncio.gather(
            *(rig.submit(name, None) for name in ("holds", "holds.async") for _ in range(SUBMISSIONS))
        )
        async with streams(rig, ids[-1]):
            at_a_time = sizing.tasks_at_a_time(SETTINGS)
            await eventually(lambda: clients(database), lambda found: found["database"] == at_a_time, within_s=120)

            children = sizing.children(SETTINGS)
            pooled = (await clients(database))["pooled"]
            assert POOL * (3 + 1) <= pooled <= POOL * sum(children)

            ours = await clients(rig.server)
            assert 0 < ours["taskgate-gateway"] <= sizing.gateway_connections(SETTINGS)
            supervisors = sum(ours[name] for name in ours if name.startswith("taskgate-supervisor"))
            assert 0 < supervisors <= sizing.supervisor_connections(SETTINGS)

            assert open_files(supervisor.pid) <= sizing.supervisor_descriptors(SETTINGS)

            async def its_own() -> int:
                """What the children that its last beat told of do not account for."""
                return open_files(supervisor.pid) - len(await rig.children()) * sizing.CHILD_DESCRIPTORS

            await eventually(its_own, lambda files: files <= supervisors + OWN_FILES, within_s=60)
            assert STREAMS < open_files(gateway.pid) <= sizing.OWN_DESCRIPTORS + STREAMS + SUBMISSIONS * 2
        with redis.Redis.from_url(database.url) as client:
            client.rpush("go", *ids)
        for task_id in ids:
            await rig.ended(task_id, within_s=120)

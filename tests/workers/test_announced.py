"""What a supervisor says that it can run is what gateways find published."""

import msgspec
from redis.asyncio import Redis

from taskgate import settings
from taskgate.contract.models import TypeInfo
from taskgate.contract.store import Store
from workers.supervisor import Supervisor
from workers.wire import HandlerInfo

ECHO = TypeInfo(
    type="echo",
    schema_hash="v1",
    kind="sync",
    queue="default",
    schema=msgspec.Raw(b"{}"),
    timeout_s=60,
    max_attempts=3,
)


async def test_a_type_is_named_once_its_schema_is_published(redis_url: str, redis_client: Redis, store: Store) -> None:
    """Readiness goes by the names: before, it was 200, and the first submission 503."""
    supervisor = Supervisor(settings.load({"TASKGATE_REDIS_URL": redis_url}))
    supervisor._runner._learn([HandlerInfo("echo", msgspec.json.encode(ECHO), 1, 300, fresh_process=False)])
    assert supervisor.describe().types == []

    await supervisor._announce()

    assert supervisor.describe().types == ["echo:v1"]
    assert [info.type for info in await store.types()] == ["echo"]
    for client in supervisor._clients:
        await client.aclose()

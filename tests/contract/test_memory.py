"""A finished task costs at most 3 KiB on the embedded server, and a full queue its limit and a half."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from taskgate.contract.errors import Refused
from taskgate.contract.models import Finish, Limits, QueueLimits, Submission
from taskgate.contract.script import BATCH
from taskgate.contract.store import Store
from tests.conftest import eventually
from tests.contract.conftest import Hand, submission, submit

TASKS = 16 * BATCH
BUDGET_BYTES = 3 * 1024
EFFORT = (
    b'{"queue_wait_ms":1,"cpu_ms":0.2,"cpu_wait_ms":0,"gc_pause_ms":0,"rss_bytes":31457280,"rss_peak_bytes":31457280}'
)


@pytest.fixture
def server_name() -> str:
    """The server that `taskgate up` brings: others have other costs."""
    return "valkey"


def _no_op() -> Submission:
    return submission(
        payload=b'{"n":1}', timeout_s=60.0, max_attempts=5, schema="0123456789abcdef", request_id="f" * 32
    )


async def _used(redis: Redis) -> int:
    """What was deleted before is freed by a thread, in its own time."""

    async def memory() -> dict[str, int]:
        return dict(await redis.info("memory"))

    await eventually(memory, lambda found: found["lazyfree_pending_objects"] == 0, within_s=60)
    return (await memory())["used_memory"]


@pytest.fixture(autouse=True)
async def _embedded_options(redis_client: Redis) -> AsyncIterator[None]:
    """As in taskgate/embedded.py: a hash stays one block of memory while its longest field is below this."""
    option = "hash-max-listpack-value"
    before = (await redis_client.config_get(option))[option]
    await redis_client.config_set(option, 1024)
    yield
    await redis_client.config_set(option, str(before))


async def test_a_finished_task_that_did_nothing_fits_the_budget(store: Store, w1: Hand, redis_client: Redis) -> None:
    before = await _used(redis_client)
    for _ in range(TASKS // BATCH):
        await submit(store, *(_no_op() for _ in range(BATCH)))
        tasks = await w1.claim(sync=BATCH)
        ends = [Finish(id=each.id, epoch=1, outcome="succeeded", result=b"null", effort=EFFORT) for each in tasks]
        assert set(await store.finish(0, "w1", ends)) == {"succeeded"}
    cost = (await _used(redis_client) - before) / TASKS
    assert 1000 < cost <= BUDGET_BYTES, f"{cost:.0f} bytes a task"


@pytest.mark.parametrize("payload_bytes", [7, 1000, 20_000])
async def test_a_full_queue_fits_into_what_operations_reckons_for_its_limit(
    store: Store, redis_client: Redis, payload_bytes: int
) -> None:
    """docs/operations.md: 1.5 times the limit, whatever fills it."""
    limit = 16 * 1024**2
    limits = Limits(queue=QueueLimits(bytes=limit))
    payload = b'"%s"' % (b"x" * (payload_bytes - 2))
    before = await _used(redis_client)
    full = False
    while not full:
        outcomes = await store.submit([submission(payload=payload, request_id="f" * 32) for _ in range(BATCH)], limits)
        full = any(isinstance(each, Refused) for each in outcomes)
    assert limit / 5 < await _used(redis_client) - before <= 1.5 * limit

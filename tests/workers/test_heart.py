"""The heart and the lease: what an answered beat allows, and what an unanswered one does not."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest
import structlog
from redis.asyncio import Redis

from taskgate.contract.models import BeatAnswer, Held, Served, WorkerInfo
from taskgate.contract.store import Store
from tests.conftest import Server, eventually
from tests.contract.conftest import SERVED, Hand, submission, submit, worker_info
from tests.workers.conftest import until
from workers.heart import Heart
from workers.lease import Lease
from workers.metrics import Metrics
from workers.slot import boot_ns

LEASE_S = 60.0
MARGIN_S = 3.0
SHORT_S = 0.6
"""The lease of a supervisor that is to be found dead, and that in thirds of which ours beats."""
MS = 1_000_000


class Guard:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.deadlines: list[int] = []

    def deadline(self, ns: int) -> None:
        self.deadlines.append(ns)


class Voice:
    """A supervisor that holds nothing, and takes its time to say so."""

    served: Sequence[Served] = SERVED
    spoke_ns = 0

    def describe(self) -> WorkerInfo:
        time.sleep(0.05)
        self.spoke_ns = boot_ns()
        return worker_info("w1", lease_ms=int(SHORT_S * 1000))

    def names(self, partition: int) -> Sequence[Held]:
        return []

    def heard(self, partition: int, answer: BeatAnswer) -> None: ...


@pytest.fixture
async def redis_client(own_server: Server) -> AsyncIterator[Redis]:
    async with Redis.from_url(own_server.url, protocol=2) as client:
        yield client


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
async def lease(guard: Guard) -> Lease:
    return Lease(LEASE_S, guard)  # type: ignore[arg-type]


@pytest.fixture
def voice() -> Voice:
    return Voice()


@pytest.fixture
def heart(redis_client: Redis, lease: Lease, voice: Voice) -> Heart:
    return Heart(Store(redis_client), lease, voice, worker_id="w1", lease_s=SHORT_S)


def restart(server: Server) -> None:
    server.start("--appendonly", "yes", "--appendfsync", "always")


async def test_a_lease_is_counted_from_before_its_beat_and_ends_before_others_may_reap(
    heart: Heart, lease: Lease, voice: Voice, guard: Guard
) -> None:
    assert not lease.holds
    before_ns = boot_ns()
    assert await heart.beat()

    assert before_ns < lease.deadline_ns - (LEASE_S - MARGIN_S) * 1e9 < voice.spoke_ns - 50 * MS + MS
    assert guard.deadlines[-1] == lease.deadline_ns


async def test_a_lease_holds_until_its_deadline(lease: Lease) -> None:
    lease.answered(boot_ns())
    assert lease.holds
    lease.answered(boot_ns() - int(LEASE_S * 1e9))
    assert not lease.holds


async def test_it_goes_on_beating_by_itself(heart: Heart, guard: Guard) -> None:
    running = asyncio.ensure_future(heart.run())
    await until(lambda: len(guard.deadlines) >= 4)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert guard.deadlines == sorted(set(guard.deadlines))


async def test_a_beat_without_an_answer_extends_nothing(
    own_server: Server, heart: Heart, lease: Lease, guard: Guard
) -> None:
    await heart.beat()
    deadline_ns, told = lease.deadline_ns, len(guard.deadlines)
    own_server.stop()

    assert not await heart.beat()
    assert (lease.deadline_ns, len(guard.deadlines)) == (deadline_ns, told)
    assert not lease.contact.is_set()
    restart(own_server)
    await eventually(heart.beat, bool)
    assert lease.contact.is_set()
    assert lease.deadline_ns > deadline_ns


async def test_while_redis_was_away_nobody_was_watched(own_server: Server, heart: Heart, redis_client: Redis) -> None:
    """It was as unreachable for the others: what they did not say then, proves nothing."""
    store = Store(redis_client)
    silent = worker_info("w2", lease_ms=int(SHORT_S * 1000))
    await store.beat(0, silent, held=[], served=SERVED)
    await heart.beat()
    own_server.stop()
    await heart.beat()
    await asyncio.sleep(SHORT_S)
    restart(own_server)
    await eventually(heart.beat, bool)
    assert {worker.id for worker in await store.workers()} == {"w1", "w2"}

    async def left() -> set[str]:
        await heart.beat()
        return {worker.id for worker in await store.workers()}

    await eventually(left, lambda ids: ids == {"w1"})


async def test_past_the_deadline_a_beat_speaks_for_what_it_has_named_alone(
    heart: Heart, lease: Lease, voice: Voice
) -> None:
    """Meanwhile all may have been reaped: what was claimed after the beat was sent is confirmed by the next one."""
    late = Held("claimed-meanwhile", 1)
    named: list[list[Held]] = [[], [late], [late], [late]]
    voice.names = lambda partition: named.pop(0)  # type: ignore[method-assign]
    lease.answered(boot_ns() - int(LEASE_S * 1e9))
    over_ns = lease.deadline_ns

    assert await heart.beat()
    assert lease.deadline_ns == over_ns
    assert await heart.beat()
    assert lease.holds


async def test_before_the_deadline_every_answered_beat_extends_the_lease(
    heart: Heart, lease: Lease, voice: Voice
) -> None:
    named: list[list[Held]] = [[], [Held("claimed-meanwhile", 1)]]
    voice.names = lambda partition: named.pop(0)  # type: ignore[method-assign]
    lease.answered(boot_ns())
    deadline_ns = lease.deadline_ns

    assert await heart.beat()
    assert lease.deadline_ns > deadline_ns


async def test_time_past_the_deadline_is_counted_as_paused(lease: Lease) -> None:
    assert lease.paused_ns() == 0
    lease.answered(boot_ns())
    assert lease.paused_ns() == 0
    lease.answered(boot_ns() - int((LEASE_S + 2) * 1e9))
    over_ns = lease.deadline_ns
    assert lease.paused_ns() >= 2e9
    lease.answered(boot_ns())
    assert 2e9 <= lease.paused_ns() <= boot_ns() - over_ns
    assert lease.paused_ns() == lease.paused_ns(), "it has stopped"


async def test_what_died_with_its_supervisor_is_counted_and_told_by_whoever_reaps_it(
    redis_client: Redis, lease: Lease, voice: Voice
) -> None:
    store, metrics = Store(redis_client), Metrics()
    heart = Heart(store, lease, voice, worker_id="w1", lease_s=SHORT_S, metrics=metrics)
    dead = Hand(store, "w2")
    await dead.beat()
    last = submission(max_attempts=1, tenant="acme", request_id="r-1")
    again = submission()
    await submit(store, last, again)
    await dead.claim(sync=2)

    async def left() -> set[str]:
        await heart.beat()
        return {worker.id for worker in await store.workers()}

    with structlog.testing.capture_logs() as lines:
        await eventually(left, lambda ids: ids == {"w1"})

    assert metrics.finished.values == {("default", "echo", "failed"): 1}
    assert metrics.retries.values == {("default", "echo"): 1}
    assert {kind: count for kind, count in metrics.failures.values.items() if count} == {("lost",): 2}
    told = {line["task_id"]: line for line in lines if line["event"] == "attempt finished"}
    assert {task_id: line["outcome"] for task_id, line in told.items()} == {last.id: "failed", again.id: "queued"}
    assert told[last.id] == {
        "event": "attempt finished",
        "log_level": "info",
        "outcome": "failed",
        "error_kind": "lost",
        "duration_ms": None,
        "task_id": last.id,
        "task_type": "echo",
        "attempt": 1,
        "tenant": "acme",
        "request_id": "r-1",
        "worker_id": "w2",
        "pid": None,
        "told_by": "w1",
    }


async def test_silence_is_counted_from_the_last_beat_that_was_answered(own_server: Server, heart: Heart) -> None:
    heart.answered_s = time.monotonic() - 7
    own_server.stop()

    with structlog.testing.capture_logs() as lines:
        assert not await heart.beat()

    [line] = [line for line in lines if line["event"] == "beats are not answered"]
    assert line["silent_s"] >= 7

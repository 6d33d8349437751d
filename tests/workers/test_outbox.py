"""The outbox on a real store: one end that cannot be written takes no other along."""

import asyncio
import json
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from taskgate.contract.models import Finish, HandBack, Submission
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from taskgate.settings import load
from tests.conftest import Server
from tests.contract.conftest import Hand, submission, submit
from tests.workers.conftest import until
from workers.ends import Ends
from workers.guard_client import GuardClient
from workers.holdings import Holding, Holdings
from workers.lease import Lease
from workers.outbox import Outbox
from workers.slot import Progress
from workers.telemetry import Telemetry


def telemetry_of(holdings: Holdings, outbox: Outbox) -> Telemetry:
    """Of a supervisor without children."""
    return Telemetry(
        holdings,
        outbox,
        children=list,
        now_ms=lambda: 0,
        paused=lambda: False,
        stall_after_s=30,
        stale=lambda holding: None,
    )


@pytest.fixture
def outbox(store: Store) -> Outbox:
    lease = Lease(6, GuardClient(pause_s=30))
    lease.answered(0)
    return Outbox(store, "w1", lease)


def endless(task_id: str) -> Submission:
    """No script takes a delay of that size."""
    return Submission(
        id=task_id, queue="q", type="t", tenant="default", priority=5, spec=b"{}", payload=b"1", delay_ms=10**300
    )


async def test_an_end_that_cannot_be_written_fails_alone(store: Store, outbox: Outbox, redis_client: Redis) -> None:
    hand = Hand(store, "w1")
    await hand.beat()
    ids = await submit(store, *(submission() for _ in range(3)))
    tasks = await hand.claim(sync=3)
    ends = [Finish(id=task.id, epoch=task.epoch, outcome="succeeded", result=b"1") for task in tasks]
    ends[1] = Finish(id=ids[1], epoch=1, outcome="succeeded", submitted=[endless(ids[0])])

    assert await asyncio.gather(*(outbox.finish(0, end) for end in ends)) == ["succeeded", "failed", "succeeded"]
    records = await store.read(ids)
    assert [record and record.status for record in records] == [Status.SUCCEEDED, Status.FAILED, Status.SUCCEEDED]
    assert records[1]
    assert b'"kind":"result"' in records[1].error


async def test_an_end_is_sent_again_until_it_is_answered(own_server: Server) -> None:
    async with Redis.from_url(own_server.url, protocol=2) as client:
        store, lease = Store(client), Lease(6, GuardClient(pause_s=30))
        hand = Hand(store, "w1")
        await hand.beat()
        await submit(store)
        task = await hand.claim_one()
        silent: list[int] = []

        def beat_again() -> None:
            silent.append(1)
            asyncio.get_running_loop().call_later(0.02, lease.answered, 0)

        lease.on_silent = beat_again
        lease.answered(0)
        own_server.stop()
        end = Outbox(store, "w1", lease).finish(0, Finish(id=task.id, epoch=1, outcome="succeeded", result=b"1"))
        await until(lambda: len(silent) >= 2)
        assert not end.done()
        own_server.start("--appendonly", "yes", "--appendfsync", "always")

        assert await asyncio.wait_for(end, 20) == "succeeded"
        assert await store.result(task.id) == (Status.SUCCEEDED, b"1")


async def test_what_an_attempt_emitted_outlasts_an_outage_and_comes_before_its_end(store: Store) -> None:
    lease = Lease(6, GuardClient(pause_s=30))
    outbox = Outbox(store, "w1", lease)
    hand = Hand(store, "w1")
    await hand.beat()
    await submit(store)
    task = await hand.claim_one()
    holdings = Holdings()
    telemetry = telemetry_of(holdings, outbox)
    ends = Ends(load({}), holdings, outbox, telemetry, handlers={}, worker_id="w1")
    holding = Holding(task, events=[("custom", b'{"n":1}')], checkpoint=b"1")
    holdings.add(holding)

    first = telemetry.flush(holding)  # sent while Redis is away
    assert first is not None
    holding.events.append(("killed", b"{}"))
    ends.finish(holding, "retry", error=b'{"kind":"timeout"}')
    await asyncio.sleep(0.05)
    assert not first.done()
    lease.answered(0)

    await until(lambda: len(holdings) == 0)
    told = [event.name for event in await store.events(task.id)]
    assert told == ["status", "custom", "killed", "status"]
    assert [word.data for word in await store.events(task.id)][1] == b'{"n":1}'


async def test_an_end_that_is_given_up_is_no_refused_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of a supervisor that stops without Redis cancels what it still wanted to say."""
    lease = Lease(6, GuardClient(pause_s=30))
    outbox = Outbox(store, "w1", lease)
    hand = Hand(store, "w1")
    await hand.beat()
    await submit(store)
    holdings = Holdings()
    lines: list[tuple[str, str, dict[str, object]]] = []
    monkeypatch.setattr("workers.ends.log", Recorder(lines))
    ends = Ends(load({}), holdings, outbox, telemetry_of(holdings, outbox), handlers={}, worker_id="w1")
    holding = Holding(await hand.claim_one())
    holdings.add(holding)
    before = asyncio.all_tasks()
    ends.finish(holding, "succeeded", result=b"1")
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await until(lambda: len(holdings) == 0)
    assert [(level, event, facts["outcome"]) for level, event, facts in lines] == [
        ("info", "attempt finished", "unsent")
    ]


class Recorder:
    """A logger that keeps its lines."""

    def __init__(self, lines: list[tuple[str, str, dict[str, object]]]) -> None:
        self._lines = lines

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **facts: self._lines.append((level, event, facts))


async def test_progress_says_where_an_attempt_began_that_may_have_resumed(store: Store) -> None:
    hand = Hand(store, "w1")
    await hand.beat()
    await submit(store)

    def shown(holding: Holding, current: float, at_s: int) -> tuple[object, ...]:
        progress = Progress(float(current), 10.0, "", "", "", at_ns=at_s * 10**9)
        said = json.loads(holding.shown(progress, now_ms=100_000, now_ns=20 * 10**9))
        return said["attempt"], said["current"], said.get("base"), said.get("base_ms")

    first = Holding(await hand.claim_one())
    assert shown(first, 5, 12) == (1, 5, None, None)
    await store.hand_back(0, "w1", [HandBack(id=first.id, epoch=1, reason="drain")])
    second = Holding(await hand.claim_one())
    assert shown(second, 5, 12) == (1, 5, 5, 92_000)
    assert shown(second, 6, 14) == (1, 6, 5, 92_000)
    assert shown(second, 1, 15) == (1, 1, 1, 95_000), "it counts anew"

"""keys: one hash tag per partition; the scripts build the same names from the prefix."""

import re
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import Served
from taskgate.contract.script import FOLDER
from taskgate.contract.shares import Share, shares
from taskgate.contract.store import Store
from tests.conftest import Clock
from tests.contract.conftest import Hand, submission, submit

NAMES: dict[str, Callable[[int], str]] = {
    "task": lambda p: keys.task(p, "T"),
    "events": lambda p: keys.events(p, "T"),
    "logs": lambda p: keys.logs(p, "T"),
    "alive": lambda p: keys.alive(p, "T"),
    "attempts": lambda p: keys.attempts(p, "T"),
    "letters": lambda p: keys.letters(p, "t"),
    "wake": lambda p: keys.wake(p, "q", "t"),
    "nudge": lambda p: keys.nudge(p, "w"),
    "beats": keys.beats,
    "worker": lambda p: keys.worker(p, "w"),
    "types": keys.types,
    "usage": keys.usage,
    "changes": lambda p: keys.changes(p, "T"),
    "inbox": lambda p: keys.inbox(p, "w"),
    "gateway": lambda p: keys.gateway(p, "g"),
    "notices": keys.notices,
    "deletions": keys.deletions,
    "access": keys.access,
}
PATTERNS = {
    r"task:<id>", r"task:<id>:events", r"task:<id>:logs", r"task:<id>:alive", r"task:<id>:attempts", r"queues",
    r"lanes:<q>",
    r"lane:<q>:<type>", r"ready:<q>:<type>:<tenant>", r"due", r"held:<worker>", r"beats", r"dead:<q>", r"final",
    r"heavy", r"all:<tenant>", r"letters:<tenant>", r"idem:<tenant>:<hash>", r"unique:<tenant>:<hash>",
    r"usage", r"wake:<q>:<type>", r"worker:<worker>", r"turns:<q>", r"turns:<q>:<type>", r"capped", r"capped:<tenant>",
    r"capped-type:<type>", r"places:<type>:<tenant>:<hash>", r"blocked:<type>:<tenant>:<hash>",
}  # fmt: skip
"""What the scripts may write, of the table in docs/architecture.md."""


@pytest.mark.parametrize("name", NAMES)
def test_every_key_lies_in_the_slot_of_its_partition(name: str) -> None:
    for partition in (0, 1, 31):
        assert NAMES[name](partition).startswith(f"tg:{{{partition}}}:")
    assert NAMES[name](1) != NAMES[name](2)


def test_every_function_of_the_module_is_covered_here() -> None:
    functions = {name for name, value in vars(keys).items() if callable(value)}
    assert functions == NAMES.keys() | {"prefix"}


def test_scripts_write_channels_by_the_names_of_the_module() -> None:
    sources = "".join(path.read_text() for path in FOLDER.glob("*.lua"))
    published = set(re.findall(r'"PUBLISH", prefix \.\. "(\w+)', sources))
    assert published == {"access", "changes", "deletions", "inbox", "notices"}


async def test_scripts_write_the_keys_of_the_table_and_no_others(
    store: Store, w1: Hand, w2: Hand, clock: Clock, redis_client: Redis
) -> None:
    await submit(
        store, *(submission(tenant="a", key=f"k{n}") for n in range(5)), submission(delay_ms=1000, unique_key="u")
    )
    seen = {key async for key in redis_client.scan_iter(count=1000)}
    succeeds, fails, retries, _ = await w1.claim(sync=4)
    await w1.report(succeeds, progress=b"{}", events=[("custom", b"{}")], logs=[(b"{}", 2)])
    await w1.beat(succeeds)
    seen |= {key async for key in redis_client.scan_iter(count=1000)}
    await w1.finish(succeeds, result=b'"' + b"x" * 1022 + b'"', submitted=[submission(queue="b")])
    await w1.finish(fails, "failed")
    await w1.finish(retries, "retry", retry_delay_ms=1)
    await w2.reap(w1)
    seen |= {key async for key in redis_client.scan_iter(count=1000)}
    await _bring_to_their_limits(store, w2)
    seen |= {key async for key in redis_client.scan_iter(count=1000)}

    assert {_pattern(key.decode()) for key in seen} == PATTERNS
    for name in (keys.task, keys.events, keys.logs, keys.alive):
        assert name(0, succeeds.id).encode() in seen
    assert keys.attempts(0, retries.id).encode() in seen
    assert keys.letters(0, "a").encode() in seen
    for shared in (keys.beats(0), keys.usage(0), keys.worker(0, "w1"), keys.wake(0, "default", "echo")):
        assert shared.encode() in seen


async def _bring_to_their_limits(store: Store, hand: Hand) -> None:
    """A tenant, a type and a concurrency key, in a queue of their own; one of its lanes has been emptied."""
    await submit(store, *(submission(queue="z", tenant="b", concurrency_key="k") for _ in range(2)))
    await submit(store, *(submission("other", queue="z", tenant=tenant) for tenant in ("b", "c", "c", "d")))
    served = [Served("z", "echo", "sync"), Served("z", "other", "sync", concurrency=1)]
    assert len(await hand.claim(sync=9, served=served, shares=shares({"c": Share(concurrency=1)}))) == 2
    served = [Served("z", "other", "sync", concurrency=2)]
    assert len(await hand.claim(sync=9, served=served, shares=shares({"c": Share(concurrency=1)}))) == 1


def _pattern(key: str) -> str:
    name = key.removeprefix(keys.prefix(0))
    name = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<id>", name)
    name = re.sub(r"^(idem|unique):(\w+):[0-9a-f]{64}$", r"\1:<tenant>:<hash>", name)
    name = re.sub(r"^(lanes|dead):\w+$", r"\1:<q>", name)
    name = re.sub(r"^letters:\w+$", "letters:<tenant>", name)
    name = re.sub(r"^(lane|wake|turns):\w+:\w+$", r"\1:<q>:<type>", name)
    name = re.sub(r"^turns:\w+$", r"turns:<q>", name)
    name = re.sub(r"^capped:\w+$", r"capped:<tenant>", name)
    name = re.sub(r"^capped-type:\w+$", r"capped-type:<type>", name)
    name = re.sub(r"^(places|blocked):\w+:\w+:[0-9a-f]{64}$", r"\1:<type>:<tenant>:<hash>", name)
    name = re.sub(r"^ready:\w+:\w+:\w+$", "ready:<q>:<type>:<tenant>", name)
    name = re.sub(r"^all:\w+$", "all:<tenant>", name)
    return re.sub(r"^(held|worker):\w+$", r"\1:<worker>", name)


async def test_partitions_do_not_see_each_other(redis_client: Redis, clock: Clock) -> None:
    store = Store(redis_client, partitions=2, clock=clock)
    item = submission()
    while store.partition_of(item.id) != 1:
        item = submission()
    await submit(store, item)
    hand = Hand(store, "w1")
    await hand.beat()
    assert await hand.claim() == []
    seen = {key.decode()[:7] async for key in redis_client.scan_iter(count=1000)}
    assert seen == {keys.prefix(0), keys.prefix(1)}
    await redis_client.flushall()

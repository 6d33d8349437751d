"""beat: a supervisor lives; it learns what it lost, what it does not know of, what to cancel and what comes next."""

from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.models import BeatValue, Held, Served
from taskgate.contract.states import Status
from taskgate.contract.store import Store
from tests.conftest import Clock, eventually
from tests.contract.conftest import LEASE_MS, SERVED, Hand, read, submission, submit, worker_info
from tests.contract.invariants import everything


async def test_every_beat_moves_the_counter_and_publishes_the_lease(store: Store, redis_client: Redis) -> None:
    hand = Hand(store, "w1")
    first, second = await hand.beat(), await hand.beat()
    assert second.counter == first.counter + 1
    assert second.beats == {"w1": BeatValue(second.counter, LEASE_MS)}
    assert await redis_client.hget(keys.beats(0), "w1") == b"%d:%d" % (second.counter, LEASE_MS)


async def test_a_beat_is_told_to_all_supervisors_at_once(w1: Hand, redis_client: Redis) -> None:
    async with redis_client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(keys.notices(0))

        async def heard() -> bytes | None:
            message = await pubsub.get_message(timeout=0.1)
            return message["data"] if message else None

        await heard()
        answer = await w1.beat()
        assert await eventually(heard, bool) == b"beat 0 w1 %d:%d" % (answer.counter, LEASE_MS)


async def test_a_beat_shows_all_supervisors(w1: Hand, w2: Hand) -> None:
    answer = await w1.beat()
    assert answer.beats == {"w1": w1.last_beat, "w2": w2.last_beat}


async def test_a_supervisor_that_comes_back_never_repeats_a_counter_that_was_watched(
    store: Store, w1: Hand, w2: Hand, clock: Clock
) -> None:
    """Two watch it; one reaps it, it beats again, and the other still watches the value of before."""
    watched = w1.last_beat
    clock.advance(LEASE_MS)
    await w2.reap(w1)
    await w1.beat()
    await submit(store)
    task = await w1.claim_one()

    assert await store.reap(0, "w1", watched=watched) is None
    assert (await read(store, task.id)).status is Status.RUNNING


async def test_workers_are_listed_as_of_their_last_beat(store: Store, w1: Hand, clock: Clock) -> None:
    [info] = await store.workers()
    assert (info.id, info.beat_ms, info.lease_ms) == ("w1", clock.now, LEASE_MS)
    clock.advance(2000)
    await w1.beat()
    assert [info.beat_ms for info in await store.workers()] == [clock.now]


async def test_what_a_supervisor_says_of_itself_outlives_its_lease_but_not_for_ever(
    w1: Hand, redis_client: Redis
) -> None:
    assert LEASE_MS < await redis_client.pttl(keys.worker(0, w1.id)) <= 10 * LEASE_MS


async def test_a_beat_renews_the_liveness_of_what_it_names(store: Store, w1: Hand, redis_client: Redis) -> None:
    await submit(store, submission(), submission())
    named, other = await w1.claim(sync=2)
    for task in (named, other):
        await redis_client.delete(keys.alive(0, task.id))
    await w1.beat(named)
    assert 0 < await redis_client.pttl(keys.alive(0, named.id)) <= LEASE_MS
    assert not await redis_client.exists(keys.alive(0, other.id))


async def test_a_beat_that_knows_all_has_nothing_to_say(store: Store, w1: Hand) -> None:
    await submit(store)
    answer = await w1.beat(await w1.claim_one())
    assert (answer.lost, answer.unknown, answer.canceling, answer.claimable) == ([], [], [], False)


async def test_a_claim_whose_reply_was_lost_is_unknown_until_it_is_named(store: Store, w1: Hand) -> None:
    await submit(store)
    task = await w1.claim_one()
    for _ in range(2):
        assert (await w1.beat()).unknown == [Held(task.id, task.epoch)]
    assert (await w1.beat(task)).unknown == []
    await w1.hand_back(task)
    assert (await w1.beat()).unknown == []


async def test_what_was_reaped_is_lost(store: Store, w1: Hand, w2: Hand, redis_client: Redis) -> None:
    await submit(store)
    task = await w1.claim_one()
    await w2.reap(w1)
    assert (await w1.beat(task)).lost == [Held(task.id, task.epoch)]
    assert not await redis_client.exists(keys.alive(0, task.id))
    await w2.claim_one()
    assert (await w1.beat(task)).lost == [Held(task.id, task.epoch)]


async def test_the_claim_of_another_is_lost_whatever_its_epoch(
    store: Store, w1: Hand, w2: Hand, redis_client: Redis
) -> None:
    await submit(store)
    task = await w1.claim_one()
    await redis_client.delete(keys.alive(0, task.id))
    assert (await w2.beat(task)).lost == [Held(task.id, task.epoch)]
    assert not await redis_client.exists(keys.alive(0, task.id))


async def test_what_ended_or_never_was_is_lost(store: Store, w1: Hand, redis_client: Redis) -> None:
    await submit(store, submission(), submission())
    finished, handed_back = await w1.claim(sync=2)
    await w1.finish(finished)
    await w1.hand_back(handed_back)
    ghost = Held(submission().id, 1)
    before = {key for key in await everything(redis_client) if ":task:" in key}
    names = [Held(finished.id, 1), Held(handed_back.id, 1), ghost]
    answer = await store.beat(0, worker_info("w1"), held=names, served=SERVED)
    assert answer.lost == names
    assert {key for key in await everything(redis_client) if ":task:" in key} == before


async def test_an_old_claim_of_a_task_held_again_is_lost_and_the_new_one_unknown(store: Store, w1: Hand) -> None:
    await submit(store)
    old = await w1.claim_one()
    await w1.hand_back(old)
    new = await w1.claim_one()
    answer = await w1.beat(old)
    assert (answer.lost, answer.unknown) == ([Held(old.id, 1)], [Held(new.id, 2)])


async def test_cancel_requests_are_told_at_every_beat_until_the_end(store: Store, w1: Hand, w2: Hand) -> None:
    await submit(store)
    task = await w1.claim_one()
    await store.cancel(task.id)
    for _ in range(2):
        answer = await w1.beat(task)
        assert (answer.canceling, answer.lost) == ([task.id], [])
    assert (await w2.beat()).canceling == []
    await w1.finish(task, "canceled")
    assert (await w1.beat()).canceling == []


async def test_the_next_due_time_is_that_of_start_retry_or_deadline(store: Store, w1: Hand, clock: Clock) -> None:
    assert (await w1.beat()).next_due_ms == 0
    await submit(store)
    await w1.finish(await w1.claim_one(), "retry", retry_delay_ms=3000)
    assert (await w1.beat()).next_due_ms == clock.now + 3000
    await submit(store, submission(delay_ms=2000))
    assert (await w1.beat()).next_due_ms == clock.now + 2000
    await submit(store, submission(deadline_ms=1000))
    answer = await w1.beat()
    assert (answer.next_due_ms, answer.now_ms) == (clock.now + 1000, clock.now)


async def test_claimable_is_what_waits_in_a_lane_that_is_served(store: Store, w1: Hand, redis_client: Redis) -> None:
    """A lost marker costs one beat at most."""
    await submit(store, submission(delay_ms=1), submission("unknown"), submission(queue="elsewhere"))
    assert not (await w1.beat()).claimable
    await submit(store)
    await redis_client.delete(keys.wake(0, "default", "echo"))
    assert (await w1.beat()).claimable
    assert not (await w1.beat(served=[Served("default", "other", "sync")])).claimable
    await w1.claim_one()
    assert not (await w1.beat()).claimable
    await store.cancel((await submit(store))[0])
    assert not (await w1.beat()).claimable

"""The store: every transition of task state, one method each; what only reads is in `reading`."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.bounds import Rooms, bounds_of, refusal
from taskgate.contract.errors import (
    DeadlinePassed,
    IdempotencyConflict,
    KeyRateLimited,
    NoSuchWorker,
    NotCancelable,
    NotDead,
    NotFinished,
    Refused,
    TaskgateError,
    TaskNotFound,
    UniqueConflict,
)
from taskgate.contract.models import (
    NEIGHBOUR_LIMIT,
    Accepted,
    BeatAnswer,
    BeatValue,
    Claimed,
    Finish,
    HandBack,
    Held,
    Limits,
    Lost,
    Reaped,
    Report,
    Room,
    Served,
    Submission,
    Taken,
    TaskSpec,
    TypeInfo,
    WorkerInfo,
)
from taskgate.contract.packing import pack
from taskgate.contract.reading import Reading
from taskgate.contract.script import BATCH, Script
from taskgate.contract.states import Status

RETENTION_MS = 86_400_000
DEAD_RETENTION_MS = 604_800_000
RETENTION_BYTES = 1 << 30
CLAIM_BYTES = 1 << 20
UNREADABLE = b'{"kind":"invalid_payload","message":"the record of this task cannot be read"}'

_to_json = msgspec.json.Encoder().encode
_spec = msgspec.json.Decoder(TaskSpec).decode


class Store(Reading):
    """Every Redis command stands here, in Reading, or in a script that a method of theirs calls.

    `redis` must not decode responses. `clock` gives Unix milliseconds in tests; None is Redis' own clock. A method
    raises StoreUnavailable when Redis did nothing, OutcomeUnknown when it may have.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        partitions: int = 1,
        clock: Callable[[], int] | None = None,
        retention_ms: int = RETENTION_MS,
        dead_retention_ms: int = DEAD_RETENTION_MS,
        retention_bytes: int = RETENTION_BYTES,
    ) -> None:
        super().__init__(redis, partitions=partitions, clock=clock)
        self._retention_ms = retention_ms
        self._dead_retention_ms = dead_retention_ms
        self._retention_bytes = retention_bytes // partitions
        self._submit = Script(redis, "submit")
        self._claim = Script(redis, "claim")
        self._finish = Script(redis, "finish")
        self._hand_back = Script(redis, "hand_back")
        self._report = Script(redis, "report")
        self._beat = Script(redis, "beat")
        self._reap = Script(redis, "reap")
        self._cancel = Script(redis, "cancel")
        self._redrive = Script(redis, "redrive")
        self._promote = Script(redis, "promote")
        self._unserved = Script(redis, "unserved")
        self._fail_unserved = Script(redis, "fail_unserved")
        self._trim = Script(redis, "trim")
        self._goodbye = Script(redis, "goodbye")
        self._nudge = Script(redis, "nudge")
        self._announce = Script(redis, "announce")
        self._delete = Script(redis, "delete")

    async def submit(
        self, items: Sequence[Submission], limits: Limits
    ) -> list[Accepted | Refused | IdempotencyConflict | UniqueConflict]:
        """Accept tasks of one partition: (nothing) -> queued | scheduled | failed. An outcome per item, in order.

        What an item replaces is canceled.

        Repeating it with the same ids has no second effect.
        """
        partition = self.partition_of(items[0].id)
        bounds = bounds_of(
            limits,
            len(self.partitions),
            frozenset([item.queue for item in items]),
            frozenset([item.tenant for item in items]),
        )
        replies, *used = await self._submit(
            keys.prefix(partition),
            self._now(),
            bounds.packed_queues,
            bounds.packed_tenants,
            self._retention_ms,
            self._dead_retention_ms,
            pack(items),
        )
        rooms = Rooms(bounds, *used)
        return [
            _submitted(item, reply, rooms[item.queue, item.tenant]) for item, reply in zip(items, replies, strict=True)
        ]

    async def beat(
        self, partition: int, worker: WorkerInfo, *, held: Sequence[Held], served: Sequence[Served], shares: str = ""
    ) -> BeatAnswer:
        """Say that a supervisor lives and what it holds; learn what it should know. `shares`: as in `claim`."""
        reply = await self._beat(
            keys.prefix(partition),
            self._now(),
            worker.id,
            worker.lease_ms,
            _to_json(worker),
            pack(held),
            self._pack_served(served),
            shares,
        )
        now, counter, lost, unknown, canceling, next_due, claimable, suspects, beats = reply
        return BeatAnswer(
            now_ms=now,
            counter=counter,
            lost=[Held(task_id.decode(), epoch) for task_id, epoch in lost],
            unknown=[Held(task_id.decode(), epoch) for task_id, epoch in unknown],
            canceling=[task_id.decode() for task_id in canceling],
            next_due_ms=next_due,
            claimable=bool(claimable or suspects),
            suspects=bool(suspects),
            beats={who.decode(): _beat_value(value) for who, value in zip(beats[::2], beats[1::2], strict=True)},
        )

    async def claim(
        self,
        partition: int,
        worker_id: str,
        *,
        served: Sequence[Served],
        free_sync: int,
        free_async: int,
        free_alone: int = 0,
        free_fresh: int = 0,
        fresh_takes: int = 1,
        lease_ms: int,
        shares: str = "",
    ) -> Taken:
        """Take tasks for free slots: queued -> running. Never repeat it blindly: its effect is new each time.

        `free_alone`: slots, of children that run nothing beside, for async tasks that must run alone. `free_fresh`:
        children that have run nothing; each task of a type that needs one takes `fresh_takes` of `free_sync` with it.
        `shares`: weights and limits of tenants (contract/shares.py).

        Raises:
            NoSuchWorker: the supervisor has not beaten, or was reaped.
        """
        reply = await self._claim(
            keys.prefix(partition),
            self._now(),
            worker_id,
            lease_ms,
            free_sync,
            free_fresh,
            fresh_takes,
            free_async,
            free_alone,
            CLAIM_BYTES,
            self._retention_ms,
            shares,
            self._pack_served(served),
        )
        if reply[0] == b"no_worker":
            raise NoSuchWorker(worker_id)
        claimed, broken = Taken(), []
        claimed.fresh_waits = bool(reply[3])
        for task_id, epoch, attempt, created, raw_spec, payload, checkpoint, neighbours in reply[2]:
            try:
                spec = _spec(raw_spec)
            except msgspec.DecodeError:
                broken.append(Finish(id=task_id.decode(), epoch=epoch, outcome="failed", error=UNREADABLE))
                continue
            claimed.append(
                Claimed(
                    partition=partition,
                    epoch=epoch,
                    attempt=attempt,
                    created_ms=created,
                    claimed_ms=reply[1],
                    spec=spec,
                    payload=payload,
                    checkpoint=checkpoint,
                    neighbours=neighbours,
                )
            )
        if broken:  # ended here: raised, they would end one supervisor after the other
            await self.finish(partition, worker_id, broken)
        return claimed

    def _pack_served(self, served: Sequence[Served]) -> bytes:
        """Each partition has its part of a type's limit, rounded up."""
        parts = len(self.partitions)
        if parts > 1:
            served = [each._replace(concurrency=-(-each.concurrency // parts)) for each in served]
        return pack(served)

    async def finish(self, partition: int, worker_id: str, items: Sequence[Finish]) -> list[str]:
        """End attempts. Per item the new status, `done` (this token had ended it), `stale` or `not_found`."""
        replies = await self._finish(keys.prefix(partition), self._now(), worker_id, self._retention_bytes, pack(items))
        return [reply[-1].decode() for reply in replies]

    async def hand_back(self, partition: int, worker_id: str, items: Sequence[HandBack]) -> list[str]:
        """Give claims up: running -> queued | retrying. Per item as `finish`."""
        replies = await self._hand_back(keys.prefix(partition), self._now(), worker_id, NEIGHBOUR_LIMIT, pack(items))
        return [reply[-1].decode() for reply in replies]

    async def report(self, partition: int, worker_id: str, items: Sequence[Report]) -> list[str]:
        """Show what running attempts do. Per item `ok`, `done` (a repeat), `stale` or `not_found`."""
        replies = await self._report(keys.prefix(partition), self._now(), worker_id, pack(items))
        return [reply.decode() for reply in replies]

    async def reap(self, partition: int, worker_id: str, *, watched: BeatValue) -> Reaped | None:
        """End up to BATCH tasks of a supervisor whose beat stood still at `watched`; None when it is gone or lives."""
        reply = await self._reap(
            keys.prefix(partition),
            self._now(),
            worker_id,
            f"{watched.counter}:{watched.lease_ms}",
            BATCH,
            self._retention_ms,
            self._dead_retention_ms,
        )
        if reply[0] != b"ok":
            return None
        ended = [Lost(_spec_of(task_id, spec), attempt, status.decode()) for task_id, status, attempt, spec in reply[2]]
        return Reaped(reply[1], ended)

    async def promote(self, partition: int) -> tuple[int, int]:
        """Do what is due. Returns Redis' time and when the next is due (0: nothing), both Unix ms."""
        now, _, next_due = await self._promote(keys.prefix(partition), self._now(), BATCH, self._retention_ms)
        return now, next_due

    async def unserved(self, partition: int, served: Sequence[Served]) -> list[tuple[str, str]]:
        """Lanes (queue, type) with queued tasks that no supervisor serves; `served`: what the caller does."""
        replies = await self._unserved(keys.prefix(partition), self._now(), pack(served))
        return [(queue.decode(), task_type.decode()) for queue, task_type in replies]

    async def fail_unserved(
        self, partition: int, worker_id: str, *, queue: str, task_type: str, after_s: float
    ) -> int | None:
        """Fail up to BATCH tasks of a lane that nobody served for `after_s`: queued -> failed as `unknown_type`.

        Returns how many, None when the lane is served, or the caller's supervisor is not alive.
        """
        reply = await self._fail_unserved(
            keys.prefix(partition),
            self._now(),
            worker_id,
            queue,
            task_type,
            f"{after_s:g}",
            BATCH,
            self._dead_retention_ms,
        )
        return cast(int, reply[1]) if reply[0] == b"ok" else None

    async def trim(self, partition: int) -> int:
        """Delete or lighten up to BATCH finished tasks whose retention is over, by age or bytes; returns how many."""
        return cast(int, await self._trim(keys.prefix(partition), self._now(), BATCH, self._retention_bytes))

    async def goodbye(self, partition: int, worker_id: str) -> bool:
        """Leave. False when tasks are still held, which the reaper then ends."""
        return bool(await self._goodbye(keys.prefix(partition), self._now(), worker_id))

    async def cancel(self, task_id: str, *, tenant: str = "") -> Status:
        """Cancel: what waits is `canceled` at once, what runs is `canceling` until it has stopped.

        `tenant`: whose task it must be, "" is anybody's.

        Raises:
            TaskNotFound: there is no such task of that tenant.
            NotCancelable: it ended in another way.
        """
        reply = await self._cancel(
            keys.prefix(self.partition_of(task_id)), self._now(), task_id, tenant, self._retention_ms
        )
        match reply:
            case [b"canceled"]:
                return Status.CANCELED
            case [b"canceling"]:
                return Status.CANCELING
            case [b"not_found"]:
                raise TaskNotFound(task_id)
            case [b"final", status]:
                raise NotCancelable(status.decode())
        raise AssertionError(f"unknown reply {reply!r}")

    async def redrive(self, task_id: str, *, request_id: str, limits: Limits, tenant: str = "") -> None:
        """Give a dead letter new attempts: failed -> queued | scheduled. The same `request_id` again is no second one.

        Raises:
            TaskNotFound: there is no such task of that tenant.
            NotDead: it has not failed.
            DeadlinePassed: it was spilled, and its start deadline is over.
            UniqueConflict: another live task has its unique key.
            Refused: its queue or its tenant has no room.
        """
        [refused] = await self.redrive_letters([task_id], request_id=request_id, limits=limits, tenant=tenant)
        if refused is not None:
            raise refused

    async def redrive_letters(
        self,
        task_ids: Sequence[str],
        *,
        request_id: str,
        limits: Limits,
        tenant: str = "",
        before_ms: int = 0,
        first_ms: int = 0,
        rate_per_s: float = 0,
    ) -> list[TaskgateError | None]:
        """Redrive up to BATCH dead letters of one partition; per id None, or what `redrive` raises.

        `before_ms`: NotDead are also those that failed then or later. `rate_per_s`: one after the other from
        `first_ms` on, failed -> scheduled as far as that lies ahead.
        """
        partition = self.partition_of(task_ids[0])
        places = await self._pipeline([["HGET", keys.task(partition, each), "place"] for each in task_ids])
        known = [(place or b"").decode().split(":") for place in places]
        bounds = bounds_of(
            limits,
            len(self.partitions),
            frozenset([queue for queue, *_ in known if queue]),
            frozenset([place[2] for place in known if place[0]]),
        )
        replies = await self._redrive(
            keys.prefix(partition),
            self._now(),
            tenant,
            request_id,
            before_ms,
            first_ms,
            round(1_000_000 / rate_per_s) if rate_per_s else 0,
            bounds.packed_queues,
            bounds.packed_tenants,
            self._retention_ms,
            pack(task_ids),
        )
        return [
            _redriven(task_id, reply, place) for task_id, reply, place in zip(task_ids, replies, known, strict=True)
        ]

    async def delete(self, task_id: str, *, tenant: str = "") -> None:
        """Delete a finished task and all that is kept of it; its idempotency key is free again.

        Raises:
            TaskNotFound: there is no such task of that tenant.
            NotFinished: it has not ended.
        """
        [reply] = await self._deleted([task_id], tenant)
        match reply:
            case [b"ok"]:
                return
            case [b"not_found"]:
                raise TaskNotFound(task_id)
            case [b"not_finished", status]:
                raise NotFinished(status.decode())
        raise AssertionError(f"unknown reply {reply!r}")

    async def purge_letters(self, task_ids: Sequence[str], *, before_ms: int, tenant: str = "") -> int:
        """Delete those of up to BATCH tasks of one partition that failed before then; returns how many."""
        return (await self._deleted(task_ids, tenant, before_ms)).count([b"ok"])

    async def _deleted(self, task_ids: Sequence[str], tenant: str, dead_before_ms: int = 0) -> list[list[bytes]]:
        prefix = keys.prefix(self.partition_of(task_ids[0]))
        return cast(list[list[bytes]], await self._delete(prefix, self._now(), tenant, dead_before_ms, pack(task_ids)))

    async def announce(self, types: Sequence[TypeInfo]) -> None:
        """Publish task types under name and schema hash; in the first partition, which every store has."""
        for n in range(0, len(types), BATCH):
            fields: list[str | bytes] = []
            for info in types[n : n + BATCH]:
                fields += [f"{info.type}:{info.schema_hash}", _to_json(info)]
            await self._announce(keys.prefix(0), self._now(), pack(fields))

    async def probe(self) -> None:
        """A real write to every partition.

        Raises:
            StoreUnavailable: writes are not possible.
        """
        for partition in self.partitions:
            await self._command("SET", f"{keys.prefix(partition)}probe", 1, "PX", 60_000)

    async def wait_for_work(
        self, marks: Sequence[tuple[int, Served]], *, worker_id: str, timeout_s: float
    ) -> int | None:
        """Block until a wake marker appears, and take it: its partition. None on a nudge or after `timeout_s`.

        The client's socket timeout must lie above `timeout_s`.
        """
        nudge = keys.nudge(0, worker_id)
        partitions = {keys.wake(at, served.queue, served.type).encode(): at for at, served in marks}
        popped = await self._command("BLPOP", nudge, *partitions, timeout_s)
        return partitions.get(popped[0]) if popped else None

    async def nudge(self, worker_id: str) -> None:
        """End this supervisor's `wait_for_work`: it should wait for other markers."""
        await self._nudge(keys.prefix(0), self._now(), worker_id)

    async def notify(self, channel: str, message: str) -> int:
        """Publish; how many connections listen."""
        return cast(int, await self._command("PUBLISH", channel, message))


def _beat_value(value: bytes) -> BeatValue:
    counter, lease_ms = value.split(b":")
    return BeatValue(int(counter), int(lease_ms))


def _redriven(task_id: str, reply: list[Any], place: Sequence[str]) -> TaskgateError | None:
    match reply:
        case [b"ok"]:
            return None
        case [b"not_found"]:
            return TaskNotFound(task_id)
        case [b"not_dead", status]:
            return NotDead(status.decode())
        case [b"deadline_passed"]:
            return DeadlinePassed()
        case [b"unique_conflict", holder, status]:
            return UniqueConflict(holder.decode(), status.decode())
        case [b"full", limit, retry_ms]:
            return refusal(limit.decode(), retry_ms, place[0], place[2])
    raise AssertionError(f"unknown reply {reply!r}")


def _submitted(
    item: Submission, reply: list[Any], room: Room
) -> Accepted | Refused | IdempotencyConflict | UniqueConflict:
    match reply:
        case [b"ok"]:
            return Accepted(item.id, replayed=False, room=room)
        case [b"spilled"]:
            return Accepted(item.id, replayed=False, spilled=True, room=room)
        case [b"replay", task_id]:
            return Accepted(task_id.decode(), replayed=True, room=room)
        case [b"conflict"]:
            return IdempotencyConflict()
        case [b"unique", task_id]:
            return Accepted(task_id.decode(), replayed=False, existing=True, room=room)
        case [b"unique_conflict", task_id, status]:
            return UniqueConflict(task_id.decode(), status.decode())
        case [b"full", limit, retry_ms]:
            refused = refusal(limit.decode(), retry_ms, item.queue, item.tenant, room)
            if isinstance(refused, KeyRateLimited):
                refused.key_rate = item.key_rate
            return refused
        case [b"wait", limit, retry_ms]:
            refused = refusal(limit.decode(), retry_ms, item.queue, item.tenant, room)
            refused.waits = True
            return refused
    raise AssertionError(f"unknown reply {reply!r}")


def _spec_of(task_id: bytes, raw: bytes) -> TaskSpec:
    """Of one that cannot be read no more than its id is known."""
    try:
        return _spec(raw)
    except msgspec.DecodeError:
        return TaskSpec(id=task_id.decode(), type="")

"""The store: every read and write of task state, one method for each transition."""

import functools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast, get_origin

import msgspec
from redis import exceptions
from redis.asyncio import Redis

from taskgate.contract import ids, keys
from taskgate.contract.errors import (
    IdempotencyConflict,
    NoSuchWorker,
    NotCancelable,
    NotDead,
    NotFinished,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    Refused,
    ResultGone,
    StoreUnavailable,
    TaskgateError,
    TaskNotFound,
    UniqueConflict,
)
from taskgate.contract.models import (
    NEIGHBOUR_LIMIT,
    UNLIMITED,
    Accepted,
    BeatAnswer,
    BeatValue,
    Claimed,
    Event,
    EventPage,
    Finish,
    HandBack,
    Held,
    History,
    Kept,
    Limits,
    Mark,
    Pace,
    Page,
    PastAttempt,
    QueueLimits,
    QueueLook,
    Report,
    Room,
    Served,
    Submission,
    Taken,
    TaskRecord,
    TaskSpec,
    TenantLimits,
    TypeInfo,
    WorkerInfo,
    position,
)
from taskgate.contract.script import AWAY, Script, drop_idle, refused
from taskgate.contract.states import FINAL, Status

T = TypeVar("T")

RETENTION_MS = 86_400_000
DEAD_RETENTION_MS = 604_800_000
RETENTION_BYTES = 1 << 30
CLAIM_BYTES = 1 << 20
UNREADABLE = b'{"kind":"invalid_payload","message":"the record of this task cannot be read"}'
BATCH = 128
"""Items that one call of a script may carry, and tasks that reap, promote and trim do a call."""

_encode = msgspec.msgpack.Encoder().encode
_to_json = msgspec.json.Encoder().encode
_spec = msgspec.json.Decoder(TaskSpec).decode
_fields = msgspec.structs.astuple
_past_attempt = msgspec.json.Decoder(PastAttempt).decode
_type_info = msgspec.json.Decoder(TypeInfo).decode
_worker_info = msgspec.json.Decoder(WorkerInfo).decode


class Store:
    """Every Redis command stands here or in a script that a method here calls.

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
        self.partitions = range(partitions)
        self._redis = redis
        self._clock = clock
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
        self._read = Script(redis, "read")
        self._page = Script(redis, "page")
        self._pace = Script(redis, "pace")
        self._queues = Script(redis, "queues")
        self._delete = Script(redis, "delete")

    def partition_of(self, task_id: str) -> int:
        return ids.partition_of(task_id, len(self.partitions))

    def _now(self) -> int | str:
        return "" if self._clock is None else self._clock()

    async def submit(
        self, items: Sequence[Submission], limits: Limits
    ) -> list[Accepted | Refused | IdempotencyConflict | UniqueConflict]:
        """Accept tasks of one partition: (nothing) -> queued | scheduled | failed. An outcome per item, in order.

        What an item replaces is canceled.

        Repeating it with the same ids has no second effect.
        """
        partition = self.partition_of(items[0].id)
        bounds = _bounds(
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
            _pack(items),
        )
        rooms = _Rooms(bounds, *used)
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
            _pack(held),
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
        return _pack(served)

    async def finish(self, partition: int, worker_id: str, items: Sequence[Finish]) -> list[str]:
        """End attempts. Per item the new status, `done` (this token had ended it), `stale` or `not_found`."""
        replies = await self._finish(
            keys.prefix(partition), self._now(), worker_id, self._retention_bytes, _pack(items)
        )
        return [reply[-1].decode() for reply in replies]

    async def hand_back(self, partition: int, worker_id: str, items: Sequence[HandBack]) -> list[str]:
        """Give claims up: running -> queued | retrying. Per item as `finish`."""
        replies = await self._hand_back(keys.prefix(partition), self._now(), worker_id, NEIGHBOUR_LIMIT, _pack(items))
        return [reply[-1].decode() for reply in replies]

    async def report(self, partition: int, worker_id: str, items: Sequence[Report]) -> list[str]:
        """Show what running attempts do. Per item `ok`, `done` (a repeat), `stale` or `not_found`."""
        replies = await self._report(keys.prefix(partition), self._now(), worker_id, _pack(items))
        return [reply.decode() for reply in replies]

    async def reap(self, partition: int, worker_id: str, *, watched: BeatValue) -> int | None:
        """End up to BATCH tasks of a supervisor whose beat stood still at `watched`.

        Returns how many tasks it still holds, None when it is gone or lives.
        """
        reply = await self._reap(
            keys.prefix(partition),
            self._now(),
            worker_id,
            f"{watched.counter}:{watched.lease_ms}",
            BATCH,
            self._retention_ms,
            self._dead_retention_ms,
        )
        return cast(int, reply[2]) if reply[0] == b"ok" else None

    async def promote(self, partition: int) -> tuple[int, int]:
        """Do what is due. Returns Redis' time and when the next is due (0: nothing), both Unix ms."""
        now, _, next_due = await self._promote(keys.prefix(partition), self._now(), BATCH, self._retention_ms)
        return now, next_due

    async def unserved(self, partition: int, served: Sequence[Served]) -> list[tuple[str, str]]:
        """Lanes (queue, type) with queued tasks that no supervisor serves; `served`: what the caller does."""
        replies = await self._unserved(keys.prefix(partition), self._now(), _pack(served))
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
        """Give a dead letter a fresh set of attempts: failed -> queued. The same `request_id` again is no second one.

        Raises:
            TaskNotFound: there is no such task of that tenant.
            NotDead: it has not failed.
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
        bounds = _bounds(
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
            _pack(task_ids),
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
        return cast(list[list[bytes]], await self._delete(prefix, self._now(), tenant, dead_before_ms, _pack(task_ids)))

    async def page(
        self,
        partition: int,
        tenant: str,
        *,
        start: Mark,
        limit: int,
        letters: bool = False,
        oldest_first: bool = False,
        till_ms: int | None = None,
        statuses: Collection[Status] = (),
        task_type: str = "",
        queue: str = "",
        kind: str = "",
    ) -> Page:
        """Look at up to `limit` of a tenant's tasks in a partition behind `start`, as far as `till_ms`.

        All by their creation or, with `letters`, dead letters by their end. Newest first down to `till_ms` inclusive;
        `oldest_first` up to it exclusive.
        """
        first, last = ("-inf", "inf") if oldest_first else ("inf", "-inf")
        more, scanned, at, last_id, ids = await self._page(
            keys.prefix(partition),
            self._now(),
            "letters" if letters else "all",
            tenant,
            int(oldest_first),
            first if start.at_ms is None else start.at_ms,
            start.id,
            last if till_ms is None else till_ms,
            limit,
            _pack(list(map(str, statuses))),
            task_type,
            queue,
            kind,
        )
        return Page(
            ids=[task_id.decode() for task_id in ids],
            scanned=scanned,
            last=Mark(int(float(at)), last_id.decode()) if more else None,
        )

    async def pace(self, partition: int, queue: str, task_type: str, *, names: int = 0) -> Pace:
        """How fast that queue moves; with the names of up to so many tenants of the type."""
        now, since, left, rate, waiting, lanes, tenants, named = await self._pace(
            keys.prefix(partition), self._now(), queue, task_type, names
        )
        return Pace(
            now_ms=now,
            since_ms=None if since is None else int(float(since)),
            left=int(left or 0),
            per_s=None if rate is None else float(rate),
            waiting=int(waiting or 0),
            lanes=lanes,
            tenants=tenants,
            names=tuple(name.decode() for name in named),
        )

    async def queues(
        self, partition: int, names: Sequence[str], *, sought: Sequence[str] = (), limit: int = 0
    ) -> tuple[int, dict[str, QueueLook]]:
        """Look at up to BATCH queues; Redis' time, and what stands there.

        Tenants looked at: about `limit` over all lanes, those `sought` first; 0: these alone, wherever they have tasks.
        """
        now, replies = await self._queues(
            keys.prefix(partition), self._now(), _pack(list(names)), _pack(list(sought)), limit
        )
        return now, {
            name: QueueLook(
                dead=dead,
                oldest_ms=oldest or None,
                beyond={lane.decode(): beyond for lane, beyond in lanes},
                ready=[(lane.decode(), tenant.decode(), count) for lane, tenant, count in ready],
            )
            for name, (dead, oldest, lanes, ready) in zip(names, replies, strict=True)
        }

    async def read(self, task_ids: Sequence[str], *, result: bool = False) -> list[TaskRecord | None]:
        """Snapshots of tasks of one partition, without their payloads; None where there is no such task."""
        prefix = keys.prefix(self.partition_of(task_ids[0]))
        replies = await self._read(prefix, self._now(), int(result), _pack(task_ids))
        return [
            None if reply is None else _record(task_id, reply, with_result=result)
            for task_id, reply in zip(task_ids, replies, strict=True)
        ]

    async def result(self, task_id: str) -> tuple[Status, bytes]:
        """How a task ended and its result (JSON; empty unless it succeeded).

        Raises:
            TaskNotFound: there is no such task.
            NotFinished: it has not ended.
            ResultGone: it was dropped since (RETENTION_BYTES).
        """
        [record] = await self.read([task_id], result=True)
        if record is None:
            raise TaskNotFound(task_id)
        if record.status not in FINAL:
            raise NotFinished(record.status)
        if record.status is Status.SUCCEEDED and not record.has_result:
            raise ResultGone(task_id)
        return record.status, record.result or b""

    async def events(self, task_id: str, *, after: str = "0-0", count: int = 500) -> list[Event]:
        """Events of a task after the stream id `after`, oldest first."""
        key = keys.events(self.partition_of(task_id), task_id)
        return [_event(entry) for entry in await self._command("XRANGE", key, f"({after}", "+", "COUNT", count)]

    async def news(self, asked: Sequence[tuple[str, str]], *, count: int = 500) -> tuple[int, list[EventPage]]:
        """Events after each (task id, stream id), in one round trip; and Redis' time (Unix ms) just before.

        What was written before that time is in the pages, or follows the end of one that is not whole.
        """
        commands: list[list[str | int]] = [["TIME"]]
        places: list[tuple[int, dict[str, tuple[int, str]]]] = []
        """For each XREAD its partition, and by key which of `asked`: a key stands once in a command."""
        for n, (task_id, after) in enumerate(asked):
            partition = self.partition_of(task_id)
            for key in self._streams(task_id):
                layer = next((known for where, known in places if where == partition and key not in known), None)
                if layer is None:
                    places.append((partition, layer := {}))
                layer[key] = n, after
        commands += [
            ["XREAD", "COUNT", count, "STREAMS", *layer, *(after for _, after in layer.values())] for _, layer in places
        ]
        time, *replies = await self._pipeline(commands)
        parts: list[list[list[Event]]] = [[] for _ in asked]
        for (_, layer), reply in zip(places, replies, strict=True):
            for name, entries in _pairs(reply or []):
                n, _ = layer[name.decode()]
                parts[n].append([_event(entry) for entry in cast(list[Any], entries)])
        return _unix_ms(time), [_page(each, count) for each in parts]

    async def kept_events(self, task_ids: Sequence[str]) -> list[Kept]:
        """Which part of each task's events is there, in one round trip."""
        owners = [(n, key) for n, task_id in enumerate(task_ids) for key in self._streams(task_id)]
        commands = [["XINFO", "STREAM", key] for _, key in owners]
        commands += [["HMGET", keys.task(self.partition_of(each), each), "lightened", "logs_lost"] for each in task_ids]
        replies = await self._pipeline(commands)
        found: list[list[dict[bytes, Any]]] = [[] for _ in task_ids]
        for (n, _), reply in zip(owners, replies, strict=False):
            if reply is not None:
                found[n].append(dict(_pairs(reply)))
        dropped = [bool(reply[0]) and int(reply[1] or 0) > 0 for reply in replies[len(owners) :]]
        return [_kept(streams, output_dropped=each) for streams, each in zip(found, dropped, strict=True)]

    def _streams(self, task_id: str) -> list[str]:
        """Keys of the streams that tell of a task; their ids are in one order."""
        partition = self.partition_of(task_id)
        return [keys.events(partition, task_id), keys.logs(partition, task_id)]

    async def output(self, task_id: str, *, after: str = "0-0", count: int = 100) -> tuple[list[Event], int]:
        """Kept output of a task after the stream id `after`, oldest first, and how many bytes of it were dropped."""
        partition = self.partition_of(task_id)
        entries, lost = await self._pipeline(
            [
                ["XRANGE", keys.logs(partition, task_id), f"({after}", "+", "COUNT", count],
                ["HGET", keys.task(partition, task_id), "logs_lost"],
            ]
        )
        return [_event(entry) for entry in entries], int(lost or 0)

    async def history(self, task_id: str) -> History:
        """What came of a task's attempts before the last one."""
        partition = self.partition_of(task_id)
        entries, fields = await self._pipeline(
            [
                ["LRANGE", keys.attempts(partition, task_id), 0, -1],
                ["HMGET", keys.task(partition, task_id), "history_lost", "redriven_at", "version"],
            ]
        )
        return History([_past_attempt(entry) for entry in entries], *(int(field or 0) for field in fields))

    async def has_event(self, task_id: str, event_id: str) -> bool:
        """Whether an event of that id is still kept."""
        for key in self._streams(task_id):
            if await self._command("XRANGE", key, event_id, event_id):
                return True
        return False

    async def dead_letters(self, queue: str, *, limit: int = 50, before_ms: int | None = None) -> list[str]:
        """Ids of dead letters of a queue that failed before `before_ms`, newest first."""
        top = "+inf" if before_ms is None else f"({before_ms}"
        found: list[tuple[float, str]] = []
        for partition in self.partitions:
            key = f"{keys.prefix(partition)}dead:{queue}"
            reply = await self._command("ZREVRANGEBYSCORE", key, top, "-inf", "WITHSCORES", "LIMIT", 0, limit)
            found += [(float(failed_ms), task_id.decode()) for task_id, failed_ms in _pairs(reply)]
        return [task_id for _, task_id in sorted(found, reverse=True)[:limit]]

    async def count_letters(self, partition: int, tenant: str, *, since_ms: int | None, before_ms: int) -> int:
        """Dead letters of a tenant in a partition that ended from `since_ms` on (None: any time), before the other."""
        key, since = f"{keys.prefix(partition)}letters:{tenant}", "-inf" if since_ms is None else since_ms
        return cast(int, await self._command("ZCOUNT", key, since, f"({before_ms}"))

    async def usage(self, partition: int) -> dict[str, float]:
        """What waits and runs: `waiting:queue:<q>`, `bytes:queue:<q>`, the same per tenant, `running:queue:<q>`, …"""
        found: dict[str, float] = {}
        cursor = b"0"
        while True:  # in parts: with a great many tenants, one reply with all would hold Redis up
            cursor, part = await self._command("HSCAN", keys.usage(partition), cursor, "COUNT", 1000)
            found |= {name.decode(): float(value) for name, value in _pairs(part)}
            if int(cursor) == 0:
                return found

    async def announce(self, types: Sequence[TypeInfo]) -> None:
        """Publish task types under name and schema hash; in the first partition, which every store has."""
        for n in range(0, len(types), BATCH):
            fields: list[str | bytes] = []
            for info in types[n : n + BATCH]:
                fields += [f"{info.type}:{info.schema_hash}", _to_json(info)]
            await self._announce(keys.prefix(0), self._now(), _pack(fields))

    async def types(self) -> list[TypeInfo]:
        return [_type_info(value) for value in await self._command("HVALS", keys.types(0))]

    async def workers(self) -> list[WorkerInfo]:
        """Supervisors that have not said goodbye and were not reaped, as of their last beat."""
        found = []
        for worker_id, _ in _pairs(await self._command("HGETALL", keys.beats(0))):
            info, beat = await self._command("HMGET", keys.worker(0, worker_id.decode()), "info", "beat")
            if info is not None:
                found.append(msgspec.structs.replace(_worker_info(info), beat_ms=int(beat)))
        return found

    async def now_ms(self) -> int:
        """Redis' clock."""
        return _unix_ms(await self._command("TIME"))

    async def probe(self) -> None:
        """A real write to every partition.

        Raises:
            StoreUnavailable: writes are not possible.
        """
        for partition in self.partitions:
            await self._command("SET", f"{keys.prefix(partition)}probe", 1, "PX", 60_000)

    async def server_config(self, *names: str) -> dict[str, str] | None:
        """Configuration of the server; None where it may not be read."""
        try:
            reply = await self._redis.config_get(*names)
        except AWAY as error:
            raise StoreUnavailable(str(error)) from error
        except exceptions.RedisError:
            return None
        return {_text(name): _text(value) for name, value in reply.items()}

    async def wait_for_work(self, marks: Sequence[tuple[int, Served]], *, worker_id: str, timeout_s: float) -> bool:
        """Block until one of the wake markers appears, and take it. False on a nudge or after `timeout_s`.

        The client's socket timeout must lie above `timeout_s`.
        """
        nudge = keys.nudge(0, worker_id)
        names = [keys.wake(partition, served.queue, served.type) for partition, served in marks]
        popped = await self._command("BLPOP", nudge, *names, timeout_s)
        return popped is not None and popped[0] != nudge.encode()

    async def nudge(self, worker_id: str) -> None:
        """End this supervisor's `wait_for_work`: it should wait for other markers."""
        await self._nudge(keys.prefix(0), self._now(), worker_id)

    async def notify(self, channel: str, message: str) -> int:
        """Publish; how many connections listen."""
        return cast(int, await self._command("PUBLISH", channel, message))

    async def _pipeline(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """Replies of reading commands that are sent together; None where the key is not there, but had to be."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            replies = await self._answer(pipeline.execute(raise_on_error=False))
        return [_reply(each) for each in replies]

    async def _command(self, *command: str | bytes | int | float) -> Any:
        return await self._answer(self._redis.execute_command(*command))  # type: ignore[no-untyped-call]

    async def _answer(self, asked: Awaitable[T]) -> T:
        """What Redis answers.

        Raises:
            StoreUnavailable: it is away, or in no state to answer.
        """
        try:
            return await asked
        except AWAY as error:
            await drop_idle(self._redis, error)
            raise StoreUnavailable(str(error)) from error
        except exceptions.RedisError as error:
            if refused(error):
                raise StoreUnavailable(str(error)) from error
            raise


def _reply(reply: Any) -> Any:
    """One of a pipeline; None: there is no such key. Raises what it was refused with."""
    if not isinstance(reply, Exception):
        return reply
    if refused(reply):
        raise StoreUnavailable(str(reply)) from reply
    if str(reply) == "no such key":
        return None
    raise reply


def _unix_ms(time: Any) -> int:
    """Of the reply to TIME."""
    seconds, micros = time
    return int(seconds) * 1000 + int(micros) // 1000


def _beat_value(value: bytes) -> BeatValue:
    counter, lease_ms = value.split(b":")
    return BeatValue(int(counter), int(lease_ms))


_NESTED = frozenset({list, tuple, Submission, Finish, HandBack, Report, Held, Served})


@functools.cache
def _texts_and_lists(kind: type[msgspec.Struct]) -> tuple[list[int], list[int]]:
    """Which of its fields are bytes, and which lists: most are neither, and there are many."""
    types = [get_origin(each.type) or each.type for each in msgspec.structs.fields(kind)]
    return [n for n, each in enumerate(types) if each is bytes], [n for n, each in enumerate(types) if each is list]


def _plain(values: Any) -> list[Any]:
    if isinstance(values, msgspec.Struct):
        fields = list(_fields(values))
        texts, lists = _texts_and_lists(values.__class__)
        for n in texts:
            fields[n] = fields[n].decode()
        for n in lists:
            fields[n] = _plain(fields[n])
        return fields
    return [
        each.decode() if each.__class__ is bytes else _plain(each) if each.__class__ in _NESTED else each
        for each in values
    ]


def _pack(items: Sequence[Any]) -> bytes:
    """Arguments of a script as msgpack, all texts as `str`: Lua's cmsgpack does not know the type for bytes."""
    return _encode(_plain(items))


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    """Pairs, whether the client gives them as a dict, nested or flat: that depends on its version and protocol."""
    if isinstance(reply, dict):
        return list(reply.items())
    if reply and isinstance(reply[0], list | tuple):
        return [(first, second) for first, second in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))


class _Bounds(NamedTuple):
    """A partition's share of the limits of some queues and tenants, and the same as arguments of a script."""

    queues: dict[str, QueueLimits]
    tenants: dict[str, TenantLimits]
    """Those that have any."""
    packed_queues: bytes
    packed_tenants: bytes


@functools.lru_cache(64)
def _bounds(limits: Limits, partitions: int, queues: frozenset[str], tenants: frozenset[str]) -> _Bounds:
    """Most groups are of the same few."""
    of_queues = {name: limits.of_queue(name).share(partitions) for name in queues}
    asked = {name: limits.of_tenant(name) for name in tenants}
    of_tenants = {name: found.share(partitions) for name, found in asked.items() if found != UNLIMITED}
    return _Bounds(of_queues, of_tenants, _pack_named(of_queues), _pack_named(of_tenants))


def _pack_named(limits: Mapping[str, QueueLimits | TenantLimits]) -> bytes:
    return _encode([(name, *_fields(each)) for name, each in limits.items()])


class _Rooms(dict[tuple[str, str], Room]):
    """What a group has left of its limits, by queue and tenant: made once for all items that are alike."""

    def __init__(self, bounds: _Bounds, used: list[list[int]], used_by_tenants: list[list[int]]) -> None:
        self._bounds = bounds
        self._used = dict(zip(bounds.queues, used, strict=True))
        self._used_by_tenants = dict(zip(bounds.tenants, used_by_tenants, strict=True))

    def __missing__(self, place: tuple[str, str]) -> Room:
        queue, tenant = place
        waiting, waiting_bytes = self._used[queue]
        own_waiting, own_bytes, left, more_ms = self._used_by_tenants.get(tenant, (0, 0, 0, 0))
        room = self[place] = Room(
            queue=self._bounds.queues[queue],
            waiting=waiting,
            waiting_bytes=waiting_bytes,
            tenant=self._bounds.tenants.get(tenant, UNLIMITED),
            tenant_waiting=own_waiting,
            tenant_waiting_bytes=own_bytes,
            rate_left=left,
            rate_more_ms=more_ms,
        )
        return room


def _refusal(limit: str, retry_ms: int, queue: str, tenant: str, room: Room | None = None) -> Refused:
    error = {"queue": QueueFull, "tenant": QuotaExceeded, "rate": RateLimited}[limit.partition("-")[0]]
    return error(limit=limit, queue=queue, tenant=tenant, retry_after_s=retry_ms / 1000, room=room)


def _redriven(task_id: str, reply: list[Any], place: Sequence[str]) -> TaskgateError | None:
    match reply:
        case [b"ok"]:
            return None
        case [b"not_found"]:
            return TaskNotFound(task_id)
        case [b"not_dead", status]:
            return NotDead(status.decode())
        case [b"unique_conflict", holder, status]:
            return UniqueConflict(holder.decode(), status.decode())
        case [b"full", limit, retry_ms]:
            return _refusal(limit.decode(), retry_ms, place[0], place[2])
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
            return _refusal(limit.decode(), retry_ms, item.queue, item.tenant, room)
        case [b"wait", limit, retry_ms]:
            refused = _refusal(limit.decode(), retry_ms, item.queue, item.tenant, room)
            refused.waits = True
            return refused
    raise AssertionError(f"unknown reply {reply!r}")


def _readable(task_id: str, spec: bytes) -> TaskSpec:
    """What cannot be read shows as such: one broken record must not keep others from being read with it."""
    try:
        return _spec(spec)
    except msgspec.DecodeError:
        return TaskSpec(id=task_id, type="unreadable")


def _record(task_id: str, reply: list[Any], *, with_result: bool) -> TaskRecord:
    fields, alive, position, result, now, barred = reply
    spec, status, version, attempt, epoch, worker, created, started, finished, due, deadline, purge = fields[:12]
    progress, effort, error, health, lease = fields[12:17]
    stage_epoch, _, stage = (fields[19] or b"").decode().partition(":")
    held = status in (b"running", b"canceling")
    return TaskRecord(
        spec=_readable(task_id, spec),
        status=Status(status.decode()),
        version=int(version),
        attempt=int(attempt),
        epoch=int(epoch),
        worker=(worker or b"").decode(),
        created_ms=int(created),
        started_ms=int(started or 0),
        finished_ms=int(finished or 0),
        due_ms=int(float(due or 0)),
        deadline_ms=int(deadline or 0),
        purge_ms=int(purge or 0),
        progress=progress or b"",
        effort=effort or b"",
        error=error or b"",
        health=(health or b"").decode(),
        stage=stage if held and stage_epoch == epoch.decode() else "",
        alive_ms=alive if held and alive >= 0 else None,
        lease_ms=int(lease or 0) if held else 0,
        position=position,
        barred=(barred or b"").decode(),
        now_ms=now,
        has_result=result is not None,
        result=result if with_result else None,
    )


def _event(entry: Any) -> Event:
    event_id, fields = entry
    values = dict(_pairs(fields))
    return Event(event_id.decode(), values[b"event"].decode(), int(values[b"seq"]), values[b"data"])


def _page(streams: Sequence[list[Event]], count: int) -> EventPage:
    """Merged by id: as far as the shortest of those that may go on."""
    if len(streams) == 1:
        return EventPage(streams[0], whole=len(streams[0]) < count)
    merged = sorted((event for each in streams for event in each), key=lambda event: position(event.id))
    cuts = [position(each[-1].id) for each in streams if len(each) >= count]
    if cuts:
        merged = [event for event in merged if position(event.id) <= min(cuts)]
    return EventPage(merged, whole=not cuts)


def _kept(streams: Sequence[dict[bytes, Any]], *, output_dropped: bool) -> Kept:
    """`output_dropped`: the stream with its output is gone, which was of any time before its end."""
    last = [info[b"last-entry"][0].decode() for info in streams if info[b"length"]]
    since = [
        info[b"recorded-first-entry-id" if info[b"length"] else b"last-generated-id"].decode()
        for info in streams
        if info[b"entries-added"] > info[b"length"]
    ]
    newest = max(last, key=position, default=None)
    if output_dropped and newest is not None:
        since.append(newest)
    return Kept(newest, max(since, key=position, default=None))

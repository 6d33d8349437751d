"""Reading task state: snapshots, events, lists, and what is known of queues and supervisors."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar, cast

import msgspec
from redis import exceptions
from redis.asyncio import Redis

from taskgate.contract import ids, keys
from taskgate.contract.errors import (
    NotFinished,
    ResultGone,
    StoreUnavailable,
    TaskNotFound,
)
from taskgate.contract.models import (
    Event,
    EventPage,
    History,
    Kept,
    Mark,
    Pace,
    Page,
    PastAttempt,
    QueueLook,
    TaskRecord,
    TaskSpec,
    TypeInfo,
    WorkerInfo,
    position,
)
from taskgate.contract.packing import pack
from taskgate.contract.script import AWAY, Script, drop_idle, refused
from taskgate.contract.states import FINAL, Status

T = TypeVar("T")

_spec = msgspec.json.Decoder(TaskSpec).decode
_past_attempt = msgspec.json.Decoder(PastAttempt).decode
_type_info = msgspec.json.Decoder(TypeInfo).decode
_worker_info = msgspec.json.Decoder(WorkerInfo).decode


class Reading:
    """What is asked of Redis and changes nothing.

    `redis` must not decode responses. `clock` gives Unix milliseconds in tests; None is Redis' own clock. A method
    raises StoreUnavailable where Redis is away.
    """

    def __init__(self, redis: Redis, *, partitions: int = 1, clock: Callable[[], int] | None = None) -> None:
        self.partitions = range(partitions)
        self._redis = redis
        self._clock = clock
        self._read = Script(redis, "read")
        self._page = Script(redis, "page")
        self._pace = Script(redis, "pace")
        self._queues = Script(redis, "queues")

    def partition_of(self, task_id: str) -> int:
        return ids.partition_of(task_id, len(self.partitions))

    def _now(self) -> int | str:
        return "" if self._clock is None else self._clock()

    async def read(self, task_ids: Sequence[str], *, result: bool = False) -> list[TaskRecord | None]:
        """Snapshots of tasks of one partition, without their payloads; None where there is no such task."""
        replies = await self._snapshots(task_ids, "result" if result else "")
        return [
            None if reply is None else _record(task_id, reply, with_result=result)
            for task_id, reply in zip(task_ids, replies, strict=True)
        ]

    async def _snapshots(self, task_ids: Sequence[str], more: str) -> list[Any]:
        prefix = keys.prefix(self.partition_of(task_ids[0]))
        replies: list[Any] = await self._read(prefix, self._now(), more, pack(task_ids))
        return replies

    async def result(self, task_id: str) -> tuple[Status, bytes]:
        """How a task ended and its result. Raises as `result_of`."""
        [record] = await self.read([task_id], result=True)
        return result_of(task_id, record)

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
        """A task with what came of its attempts before the last one, all as of one moment.

        Raises:
            TaskNotFound: there is no such task.
        """
        [reply] = await self._snapshots([task_id], "history")
        if reply is None:
            raise TaskNotFound(task_id)
        *snapshot, (attempts, lost, redriven_ms) = reply
        return History(
            _record(task_id, snapshot, with_result=False),
            [_past_attempt(each) for each in attempts],
            int(lost or 0),
            int(redriven_ms or 0),
        )

    async def has_event(self, task_id: str, event_id: str) -> bool:
        """Whether an event of that id is still kept."""
        for key in self._streams(task_id):
            if await self._command("XRANGE", key, event_id, event_id):
                return True
        return False

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
            pack(list(map(str, statuses))),
            task_type,
            queue,
            kind,
        )
        return Page(
            ids=[task_id.decode() for task_id in ids],
            scanned=scanned,
            last=Mark(int(float(at)), last_id.decode()) if more else None,
        )

    async def count_letters(self, partition: int, tenant: str, *, since_ms: int | None, before_ms: int) -> int:
        """Dead letters of a tenant in a partition that ended from `since_ms` on (None: any time), before the other."""
        since = "-inf" if since_ms is None else since_ms
        return cast(int, await self._command("ZCOUNT", keys.letters(partition, tenant), since, f"({before_ms}"))

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
            keys.prefix(partition), self._now(), pack(list(names)), pack(list(sought)), limit
        )
        return now, {
            name: QueueLook(
                dead=dead,
                oldest_ms=oldest or None,
                oldest_sure=bool(sure),
                beyond={lane.decode(): beyond for lane, beyond in lanes},
                ready=[(lane.decode(), tenant.decode(), count) for lane, tenant, count in ready],
            )
            for name, (dead, oldest, sure, lanes, ready) in zip(names, replies, strict=True)
        }

    async def usage(self, partition: int) -> dict[str, float]:
        """What waits and runs: `waiting:queue:<q>`, `bytes:queue:<q>`, the same per tenant, `running:queue:<q>`, …"""
        found: dict[str, float] = {}
        cursor = b"0"
        while True:  # in parts: with a great many tenants, one reply with all would hold Redis up
            cursor, part = await self._command("HSCAN", keys.usage(partition), cursor, "COUNT", 1000)
            found |= {name.decode(): float(value) for name, value in _pairs(part)}
            if int(cursor) == 0:
                return found

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

    async def server_config(self, *names: str) -> dict[str, str] | None:
        """Configuration of the server; None where it may not be read."""
        try:
            reply = await self._redis.config_get(*names)
        except AWAY as error:
            raise StoreUnavailable(str(error)) from error
        except exceptions.RedisError:
            return None
        return {_text(name): _text(value) for name, value in reply.items()}

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


def result_of(task_id: str, record: TaskRecord | None) -> tuple[Status, bytes]:
    """How a task ended and its result (JSON; empty unless it succeeded), of what was read with it.

    Raises:
        TaskNotFound: there is no such task.
        NotFinished: it has not ended.
        ResultGone: it was dropped since (RETENTION_BYTES).
    """
    if record is None:
        raise TaskNotFound(task_id)
    if record.status not in FINAL:
        raise NotFinished(record.status)
    if record.status is Status.SUCCEEDED and not record.has_result:
        raise ResultGone(task_id)
    return record.status, record.result or b""


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


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    """Pairs, whether the client gives them as a dict, nested or flat: that depends on its version and protocol."""
    if isinstance(reply, dict):
        return list(reply.items())
    if reply and isinstance(reply[0], list | tuple):
        return [(first, second) for first, second in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))


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

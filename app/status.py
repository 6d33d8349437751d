"""`GET /tasks/{id}`: the whole task, a part of it, or that nothing has changed."""

import functools
import re
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive

from app import waiting
from app.fields import pick
from app.hub import Hub
from app.reply import JSON, Caller, Reply, length
from app.snapshots import Snapshot, decided_at_the_read

_VERSION = re.compile(rb'"([0-9]{1,15})[-"]')


class Asked(NamedTuple):
    """What the query of a status read says."""

    fields: str | None = None
    wait_s: float | None = None


_PLAIN = Asked()


class StatusEndpoint:
    """The hot `GET /tasks/{id}`, as plain ASGI behind the door."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._snapshots = hub.snapshots

    async def __call__(
        self, task_id: str, caller: Caller, headers: dict[bytes, bytes], query: bytes, receive: Receive
    ) -> Reply:
        asked = _asked(query) if query else _PLAIN
        cache_control = headers.get(b"cache-control")
        if cache_control is not None and b"no-cache" in cache_control.lower():
            snapshot = await self._snapshots.fresh(task_id, caller.tenant)
        else:
            snapshot = await self._snapshots.get(task_id, caller.tenant)
        known = headers.get(b"if-none-match")
        if known is not None and _is_newer(known, snapshot):
            # Another gateway has shown more than this one has in memory: for a client a status never goes back.
            snapshot = await self._snapshots.fresh(task_id, caller.tenant)
        wait_s = asked.wait_s
        applied: tuple[tuple[bytes, bytes], ...] = ()
        if wait_s is None and (prefer := headers.get(b"prefer")) is not None:
            wait_s = waiting.preferred_s(prefer)
            applied = (waiting.applied(wait_s),) if wait_s else ()
        if wait_s:
            if asked.fields is not None:
                _picked(snapshot, asked.fields)  # an unknown field is refused now, not after the wait
            wanted = _wanted(known, asked.fields)
            if not wanted(snapshot):
                snapshot = await waiting.until(self._hub, task_id, caller, wanted, wait_s=wait_s, receive=receive)
        if asked.fields is not None:
            return await self._partial(snapshot, asked.fields, known, applied)
        if known is not None and matches(known, snapshot.etag):
            return Reply(304, [*snapshot.not_modified, *applied], b"")
        return Reply(200, [*snapshot.headers, *applied], snapshot.body)

    async def _partial(
        self, snapshot: Snapshot, fields: str, known: bytes | None, applied: tuple[tuple[bytes, bytes], ...]
    ) -> Reply:
        picked = _picked(snapshot, fields)
        etag = _etag(snapshot, fields)
        caching = [(b"etag", etag), *snapshot.not_modified[1:], *applied]
        if known is not None and matches(known, etag):
            return Reply(304, caching, b"")
        if "result" in picked and snapshot.record.has_result:
            _, result = await self._snapshots.result(snapshot.record.id)
            picked["result"] = msgspec.Raw(result)
        body = msgspec.json.encode(picked)
        return Reply(200, [JSON, length(body), *caching], body)


@functools.lru_cache(256)
def _asked(query: bytes) -> Asked:
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    fields = given.get("fields")
    return Asked(
        None if fields is None else ",".join(fields), waiting.asked_s(given["wait"][0]) if "wait" in given else None
    )


def _picked(snapshot: Snapshot, fields: str) -> dict[str, Any]:
    whole = msgspec.json.decode(snapshot.body)
    whole["result"] = None
    return pick(whole, fields)


def _etag(snapshot: Snapshot, fields: str | None) -> bytes:
    if fields is None:
        return snapshot.etag
    record = snapshot.record
    return b'W/"%d%s-%08x"' % (record.version, decided_at_the_read(record), zlib.crc32(fields.encode()))


def _wanted(known: bytes | None, fields: str | None) -> Callable[[Snapshot], bool]:
    """What ends a wait: the end of the task; for who knows a state of it, any other."""
    if known is None:
        return Snapshot.has_ended
    return lambda snapshot: snapshot.has_ended() or not matches(known, _etag(snapshot, fields))


def _is_newer(known: bytes, snapshot: Snapshot) -> bool:
    return any(int(version) > snapshot.record.version for version in _VERSION.findall(known))


def matches(asked: bytes, etag: bytes) -> bool:
    """Weak comparison of `If-None-Match` (RFC 9110 13.1.2)."""
    if asked.strip() == b"*":
        return True
    opaque = etag.removeprefix(b"W/")
    return any(one.strip().removeprefix(b"W/") == opaque for one in asked.split(b","))

"""`GET /tasks/{id}`: the whole task, a part of it, or that nothing has changed."""

import zlib
from urllib.parse import parse_qs

import msgspec

from app.fields import pick
from app.reply import JSON, Caller, Reply, length
from app.snapshots import Snapshot, Snapshots
from taskgate.contract.store import Store


class StatusEndpoint:
    """The hot `GET /tasks/{id}`, as plain ASGI behind the door."""

    def __init__(self, snapshots: Snapshots, store: Store) -> None:
        self._snapshots = snapshots
        self._store = store

    async def __call__(self, task_id: str, caller: Caller, headers: dict[bytes, bytes], query: bytes) -> Reply:
        cache_control = headers.get(b"cache-control")
        if cache_control is not None and b"no-cache" in cache_control.lower():
            snapshot = await self._snapshots.fresh(task_id, caller.tenant)
        else:
            snapshot = await self._snapshots.get(task_id, caller.tenant)
        fields = _fields(query) if query else None
        if fields is not None:
            return await self._partial(snapshot, fields, headers)
        asked = headers.get(b"if-none-match")
        if asked is not None and _matches(asked, snapshot.etag):
            return Reply(304, snapshot.not_modified, b"")
        return Reply(200, snapshot.headers, snapshot.body)

    async def _partial(self, snapshot: Snapshot, fields: str, headers: dict[bytes, bytes]) -> Reply:
        whole = msgspec.json.decode(snapshot.body)
        whole["result"] = None
        picked = pick(whole, fields)
        if "result" in picked and snapshot.record.has_result:
            _, result = await self._store.result(snapshot.record.id)
            picked["result"] = msgspec.Raw(result)
        body = msgspec.json.encode(picked)
        etag = b'W/"%d-%08x"' % (snapshot.record.version, zlib.crc32(fields.encode()))
        caching = [(b"etag", etag), *snapshot.not_modified[1:]]
        asked = headers.get(b"if-none-match")
        if asked is not None and _matches(asked, etag):
            return Reply(304, caching, b"")
        return Reply(200, [JSON, length(body), *caching], body)


def _fields(query: bytes) -> str | None:
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("fields")
    return None if given is None else ",".join(given)


def _matches(asked: bytes, etag: bytes) -> bool:
    """Weak comparison of `If-None-Match` (RFC 9110 13.1.2)."""
    if asked.strip() == b"*":
        return True
    opaque = etag.removeprefix(b"W/")
    return any(one.strip().removeprefix(b"W/") == opaque for one in asked.split(b","))

"""API keys in Redis, all in the first partition: kept by their digest, told to all gateways when they end."""

import contextlib
import secrets
from collections.abc import Sequence
from typing import NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from taskgate.contract import keys
from taskgate.contract.api_keys import ENDED_MS, MOST, MOST_OF_TENANT, ApiKey
from taskgate.contract.errors import KeyNotFound, KeysFull, OutcomeUnknown, StoreUnavailable
from taskgate.contract.script import Script

_USED_MS = 60_000
"""That a key is used is written so often at most."""

_PREFIX = keys.prefix(0)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ApiKey).decode


class KnownKey(NamedTuple):
    key: ApiKey
    now_ms: int
    """Redis' time as it was read."""
    used_ms: int
    """0: never."""


class KeyStore:
    """A method raises StoreUnavailable when Redis did nothing, OutcomeUnknown when it may have."""

    def __init__(self, redis: Redis) -> None:
        self._look_up_keys = Script(redis, "look_up_keys")
        self._use_keys = Script(redis, "use_keys")
        self._list_keys = Script(redis, "list_keys")
        self._keep_key = Script(redis, "keep_key")
        self._revoke_key = Script(redis, "revoke_key")
        self._stream_secret = Script(redis, "stream_secret")

    async def read_keys(self, ids: Sequence[str]) -> list[KnownKey | None]:
        """What is kept of each id."""
        now_ms, records, used = await self._look_up_keys(_PREFIX, "", _packed(ids))
        return [
            None if record is None else KnownKey(_decode(record), now_ms, int(at or 0))
            for record, at in zip(records, used, strict=True)
        ]

    async def look_up_keys(self, ids: Sequence[str]) -> list[KnownKey | None]:
        """As `read_keys`, of keys that were shown: that they are used is kept too, where that can be."""
        found = await self.read_keys(ids)
        now_ms = next((each.now_ms for each in found if each is not None), 0)
        stale = [each.key.id for each in found if each is not None and now_ms - each.used_ms >= _USED_MS]
        if stale:
            with contextlib.suppress(StoreUnavailable, OutcomeUnknown):  # a full disk keeps nobody out
                await self.use_keys(stale)
        return found

    async def use_keys(self, ids: Sequence[str]) -> None:
        """Keep that they are used now."""
        await self._use_keys(_PREFIX, "", _packed(ids))

    async def list_keys(self) -> list[KnownKey]:
        """All, the oldest first."""
        now_ms, records, used = await self._list_keys(_PREFIX, "")
        used_ms = dict(zip(used[::2], used[1::2], strict=True))
        found = [_decode(record) for record in records]
        found.sort(key=lambda key: (key.created_ms, key.id))
        return [KnownKey(key, now_ms, int(used_ms.get(key.id.encode(), 0))) for key in found]

    async def keep_key(self, key: ApiKey, *, most_of_tenant: int = MOST_OF_TENANT) -> None:
        """
        Raises:
            KeysFull: there are as many as there may be.
        """
        await self._kept(key, most_of_tenant)

    async def replace_key(
        self, old: ApiKey, *, new: ApiKey, expires_ms: int, most_of_tenant: int = MOST_OF_TENANT
    ) -> None:
        """Keep `new`; the old one is good until then. There is always room for one instead of another.

        Raises:
            KeyNotFound: it was revoked, or replaced by another, meanwhile.
            KeysFull: there are as many as there may be.
        """
        old_is = msgspec.structs.replace(old, expires_ms=expires_ms, replaced_by=new.id)
        await self._kept(new, most_of_tenant, old.id, _encode(old), _encode(old_is))

    async def _kept(
        self, key: ApiKey, most_of_tenant: int, old_id: str = "", old_was: bytes = b"", old_is: bytes = b""
    ) -> None:
        found = await self._keep_key(
            _PREFIX, "", key.id, _encode(key), old_id, old_was, old_is, MOST, most_of_tenant, ENDED_MS
        )
        match found:
            case b"changed":
                raise KeyNotFound(old_id)
            case b"full":
                raise KeysFull

    async def revoke_key(self, key_id: str) -> bool:
        """Whether it was there; all gateways are told in any case."""
        return bool(await self._revoke_key(_PREFIX, "", key_id))

    async def stream_secret(self, period: int, *, life_ms: int) -> bytes:
        """By which stream tokens that end in that period are signed; gone so long after it was first asked for."""
        return cast(bytes, await self._stream_secret(_PREFIX, "", str(period), secrets.token_hex(32), life_ms))


def _packed(ids: Sequence[str]) -> bytes:
    return msgspec.msgpack.encode(list(ids))

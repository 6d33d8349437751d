"""Who calls: the key of a request, looked up by its digest, remembered for a moment, forgotten when it is revoked."""

import asyncio
import contextlib
import hmac
import time
from typing import TYPE_CHECKING

from cachetools import TTLCache

from app.errors import Problem
from app.grants import Grant
from taskgate.contract.api_keys import digest_of, id_of, is_digest, is_key
from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.group import Group
from taskgate.contract.key_store import KeyStore, KnownKey

if TYPE_CHECKING:
    from app.sse import EventStream

KNOWN_S = 30.0
"""So long a key is believed without another look; a revoked one is told of at once."""
UNKNOWN_S = 5.0
LOOK_S = 10.0
"""Keys with open streams or waiting requests are looked at so often, should it not have been told that they ended."""
_IDLE_S = 60.0
"""Without a request for so long, a key is no longer remembered."""
STREAMS_RETRY_S = 5
"""Nothing tells when a stream will end."""

_CHALLENGE = 'Bearer realm="taskgate"'


class Access:
    """Of one gateway process; only where a key is asked for."""

    def __init__(self, store: KeyStore, bootstrap: str, *, partitions: int) -> None:
        self._store = store
        self._partitions = partitions
        self._bootstrap_key = bootstrap.encode()
        self.bootstrap = Grant(names_tenant=True)
        self._ready: dict[bytes | None, Grant] = {b"Bearer " + self._bootstrap_key: self.bootstrap}
        """By header as it is usually written: what a request costs."""
        self._grants: dict[str, Grant] = {}
        self._digests: dict[str, str] = {}
        self._unknown: TTLCache[str, None] = TTLCache(1_024, UNKNOWN_S)
        self._look_up: Group[str, KnownKey | None] = Group(store.look_up_keys)
        self._checks: set[asyncio.Task[None]] = set()
        self._told = 0
        """How often something was said to have changed: what was read before may be old."""

    def known(self, authorization: bytes | None) -> Grant | None:
        """Without a look at Redis; None: that needs `grant`."""
        grant = self._ready.get(authorization)
        return grant if grant is not None and grant.good_until > time.monotonic() else None

    async def grant(self, authorization: bytes | None) -> Grant:
        """
        Raises:
            Problem: 401.
        """
        if authorization is None:
            raise Problem("unauthorized", headers={"WWW-Authenticate": _CHALLENGE})
        scheme, _, given = authorization.partition(b" ")
        given = given.strip()
        if scheme.lower() != b"bearer":
            raise unauthorized()
        if hmac.compare_digest(given, self._bootstrap_key):
            return self.bootstrap
        key = given.decode("latin-1")
        if not is_key(key):
            raise unauthorized()
        digest = digest_of(key)
        grant = await self.by_id(id_of(digest))
        if grant is None or not is_digest(digest, self._digests.get(grant.key_id, "")):
            raise unauthorized()
        self._ready[b"Bearer " + given] = grant
        return grant

    async def by_id(self, key_id: str) -> Grant | None:
        """Of a key that is there now, or was a moment ago; None: it is not."""
        grant = self._grants.get(key_id)
        if grant is not None and grant.good_until > time.monotonic():
            return grant
        if key_id in self._unknown:
            return None
        told = -1
        while told != self._told:  # else it may have been revoked since it was read
            told = self._told
            found = await self._look_up(key_id)
        return self._learn(key_id, found)

    def _learn(self, key_id: str, found: KnownKey | None) -> Grant | None:
        left_s = 0.0 if found is None else KNOWN_S
        if found is not None and found.key.expires_ms:
            left_s = min(left_s, (found.key.expires_ms - found.now_ms) / 1000)
        if found is None or left_s <= 0:
            if (ended := self._grants.get(key_id)) is not None:
                self._drop(key_id)
                ended.end()
            self._unknown[key_id] = None
            return None
        key = found.key
        grant = self._grants.get(key_id)
        if grant is None:
            grant = self._grants[key_id] = Grant(key_id, key.tenant, frozenset(key.scopes))
        self._digests[key_id] = key.digest
        grant.most_streams = key.streams
        if key.rate_per_s:
            parts = self._partitions  # each has its own count
            grant.rate = f"{key_id} {key.rate_per_s / parts:.17g} {-(-key.burst // parts)}"
        grant.good_until = time.monotonic() + left_s
        return grant

    def changed(self, key_id: str) -> None:
        """A key was revoked, or replaced: look before it is believed again, and end its streams if it has ended."""
        self._told += 1
        grant = self._grants.get(key_id)
        if grant is not None:
            grant.good_until = float("-inf")
            self._check_soon(key_id)

    def lost_track(self) -> None:
        """Something may have been said that was not heard."""
        self._told += 1
        for key_id, grant in list(self._grants.items()):
            grant.good_until = float("-inf")
            if grant.is_in_use:
                self._check_soon(key_id)

    def _check_soon(self, key_id: str) -> None:
        check = asyncio.ensure_future(self._check(key_id))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _check(self, key_id: str) -> None:
        with contextlib.suppress(StoreUnavailable, OutcomeUnknown):  # the next round asks again
            await self.by_id(key_id)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for key_id, grant in list(self._grants.items()):
                now = time.monotonic()
                if grant.is_in_use and grant.good_until <= now:
                    await self._check(key_id)
                elif not grant.is_in_use and grant.good_until < now - _IDLE_S:
                    self._drop(key_id)

    def _drop(self, key_id: str) -> None:
        grant = self._grants.pop(key_id, None)
        self._digests.pop(key_id, None)
        self._ready = {line: each for line, each in self._ready.items() if each is not grant}


def unauthorized() -> Problem:
    return Problem("unauthorized", headers={"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'})


def join_streams(grant: Grant, stream: "EventStream | None") -> None:
    """Count it in, until it has ended.

    Raises:
        Problem: as many streams of the key are open as it may have, or it has ended.
    """
    if grant.ended:
        raise unauthorized()
    if stream is not None and grant.most_streams and len(grant.streams) >= grant.most_streams:
        raise Problem("too-many-streams", retry_after_s=STREAMS_RETRY_S, limit="streams")
    if stream is not None:
        grant.streams.add(stream)
        stream.on_end = grant.streams.discard

"""Stream tokens: for browsers, whose EventSource sends no header. One task's events, one minute, one key's tenant."""

import hmac
import time
from base64 import urlsafe_b64encode
from typing import NamedTuple

from cachetools import TTLCache

from taskgate.contract.key_store import KeyStore

LIFE_S = 60
_FURTHEST_S = 120
"""No token ends later than so long from now: its life, and what the clocks of two gateways may be apart."""
_PERIOD_S = 3600
_PERIOD_LIFE_MS = 1000 * (_PERIOD_S + 2 * _FURTHEST_S)
"""From the first token that ends in a period to the last one's end: who has read a secret has it for no longer."""
_SECRET_S = 30.0
"""So long it is used without another look: a Redis that was emptied has another one."""
_MAC_BYTES = 16


class Told(NamedTuple):
    """What a token says of who asked for it."""

    key_id: str
    """"": of nobody that has a key in Redis."""
    tenant: str


class StreamTokens:
    """Signed by a secret that all gateways share, so none of them has to remember any."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._secrets: TTLCache[int, bytes] = TTLCache(4, _SECRET_S)
        """By period."""

    async def make(self, task_id: str, key_id: str, tenant: str) -> tuple[str, int]:
        """And when it ends, Unix s."""
        ends_s = int(time.time()) + LIFE_S
        said = f"{ends_s:x}.{key_id}.{tenant}"
        return f"{self._mac(await self._secret(ends_s), task_id, said)}.{said}", ends_s

    async def check(self, task_id: str, token: str) -> Told | None:
        """None: it is none of ours, or of another task, or its time is over."""
        mac, _, said = token.partition(".")
        try:
            ends, key_id, tenant = said.split(".", 2)
            ends_s = int(ends, 16)
        except ValueError:
            return None
        # Before anything else: that decides which secret is asked for.
        if not said.isascii() or not 0 < ends_s - time.time() <= _FURTHEST_S:
            return None
        right = self._mac(await self._secret(ends_s), task_id, said)
        return Told(key_id, tenant) if hmac.compare_digest(mac.encode(), right.encode()) else None

    async def _secret(self, ends_s: int) -> bytes:
        period = ends_s // _PERIOD_S
        if (secret := self._secrets.get(period)) is None:
            secret = await self._store.stream_secret(period, life_ms=_PERIOD_LIFE_MS)
            self._secrets[period] = secret
        return secret

    @staticmethod
    def _mac(secret: bytes, task_id: str, said: str) -> str:
        found = hmac.digest(secret, f"{task_id} {said}".encode(), "sha256")[:_MAC_BYTES]
        return urlsafe_b64encode(found).rstrip(b"=").decode()

"""Stream tokens: for browsers, whose EventSource sends no header. One task's events, one minute, one key's tenant."""

import hmac
import time
from base64 import urlsafe_b64encode
from typing import NamedTuple

from taskgate.contract.key_store import KeyStore

LIFE_S = 60
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
        self._secret = b""
        self._secret_until = float("-inf")

    async def make(self, task_id: str, key_id: str, tenant: str) -> tuple[str, int]:
        """And when it ends, Unix s."""
        ends_s = int(time.time()) + LIFE_S
        said = f"{ends_s:x}.{key_id}.{tenant}"
        return f"{self._mac(await self._fresh(), task_id, said)}.{said}", ends_s

    async def check(self, task_id: str, token: str) -> Told | None:
        """None: it is none of ours, or of another task, or its time is over."""
        mac, _, said = token.partition(".")
        if not said.isascii() or not hmac.compare_digest(
            mac.encode(), self._mac(await self._fresh(), task_id, said).encode()
        ):
            return None
        ends, key_id, tenant = said.split(".", 2)
        return Told(key_id, tenant) if time.time() < int(ends, 16) else None

    async def _fresh(self) -> bytes:
        if self._secret_until < time.monotonic():
            self._secret = await self._store.stream_secret()
            self._secret_until = time.monotonic() + _SECRET_S
        return self._secret

    @staticmethod
    def _mac(secret: bytes, task_id: str, said: str) -> str:
        found = hmac.digest(secret, f"{task_id} {said}".encode(), "sha256")[:_MAC_BYTES]
        return urlsafe_b64encode(found).rstrip(b"=").decode()

"""API keys: how they are spelled, and what is kept of one, from which it cannot be told."""

import hmac
import re
import secrets
import zlib
from hashlib import sha256

import msgspec

PREFIX = "tg_live_"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_LENGTH = 32
_SUM_LENGTH = 6
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{_SECRET_LENGTH}}}_[0-9A-Za-z]{{{_SUM_LENGTH}}}", re.ASCII)
_ID_LENGTH = 16
MOST = 1_000
"""Keys of one service; a list shows all of them."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept, as JSON. Times are Unix ms by Redis' clock."""

    id: str
    digest: str
    """SHA-256 of the key: 190 random bits need no slow hash."""
    hint: str
    """Its last four characters."""
    name: str
    tenant: str
    scopes: list[str]
    rate_per_s: float = 0.0
    """Submissions a second; 0: any."""
    burst: int = 1
    streams: int = 0
    """Event streams at once, of each gateway process; 0: any."""
    created_ms: int
    expires_ms: int = 0
    """0: never."""


def new_key() -> str:
    secret = "".join(secrets.choice(_DIGITS) for _ in range(_SECRET_LENGTH))
    return f"{PREFIX}{secret}_{_checksum(secret)}"


def is_key(text: str) -> bool:
    """Whether it is spelled like one: typos are refused without a look at Redis."""
    return _FORM.fullmatch(text) is not None and _checksum(text[len(PREFIX) : -_SUM_LENGTH - 1]) == text[-_SUM_LENGTH:]


def digest_of(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def id_of(digest: str) -> str:
    """By which people and logs name a key, and by which it is found."""
    return digest[:_ID_LENGTH]


def is_digest(given: str, kept: str) -> bool:
    return hmac.compare_digest(given, kept)


def _checksum(secret: str) -> str:
    left, text = zlib.crc32(secret.encode()), ""
    for _ in range(_SUM_LENGTH):
        left, digit = divmod(left, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text

"""API keys: how they are spelled, and what is kept of one, from which it cannot be told."""

import hmac
import re
import secrets
import zlib
from hashlib import sha256
from typing import TypedDict

import msgspec

PREFIX = "tg_live_"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_LENGTH = 32
_SUM_LENGTH = 6
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{_SECRET_LENGTH}}}_[0-9A-Za-z]{{{_SUM_LENGTH}}}", re.ASCII)
_ID_LENGTH = 16
MOST = 1_000
"""Keys of one service that have not ended; a list shows all of them."""
MOST_OF_TENANT = 100
"""Of them as many as keys of a tenant make for it: no tenant takes the room of all others."""
ENDED_MS = 86_400_000
"""So long those that have ended are listed, unless there is no room."""


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
    replaced_by: str = ""
    """Id of the key that came of it."""


class Marks(TypedDict):
    """By what a key is known, as ApiKey has it."""

    id: str
    digest: str
    hint: str


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


def marks_of(key: str) -> Marks:
    digest = digest_of(key)
    return {"id": id_of(digest), "digest": digest, "hint": key[-4:]}


def may_no_more(key: ApiKey, other: ApiKey) -> bool:
    """Whether it may nothing, in no place and at no time, that the other one may not."""
    return (
        key.tenant == other.tenant
        and set(key.scopes) <= set(other.scopes)
        and _is_within(key.rate_per_s, other.rate_per_s)
        and (key.burst <= other.burst or not other.rate_per_s)
        and _is_within(key.streams, other.streams)
        and _is_within(key.expires_ms, other.expires_ms)
    )


def _is_within(limit: float, other: float) -> bool:
    """0 is none."""
    return not other or 0 < limit <= other


def is_digest(given: str, kept: str) -> bool:
    return hmac.compare_digest(given, kept)


def _checksum(secret: str) -> str:
    left, text = zlib.crc32(secret.encode()), ""
    for _ in range(_SUM_LENGTH):
        left, digit = divmod(left, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text

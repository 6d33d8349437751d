"""Cursors: opaque texts that hold where a list or a sweep goes on, and are of use there alone."""

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Any, TypeVar

import msgspec

from app.errors import Problem

T = TypeVar("T")

Ms = Annotated[int, msgspec.Meta(ge=-(2**48), le=2**48)]
"""Unix ms: any time that a filter can name."""

_SEAL_BYTES = 9


def sealed(value: Any, use: str, wanted: msgspec.Struct, tenant: str) -> str:
    """`value` holds nothing that its reader did not see. `use` and `wanted`: what is gone on with."""
    plain = msgspec.json.encode(value)
    return urlsafe_b64encode(_seal(plain, use, wanted, tenant) + plain).rstrip(b"=").decode()


def unsealed(cursor: str, form: type[T], use: str, wanted: msgspec.Struct, tenant: str) -> T:
    """Raises Problem: it was made for something else, or by another than us."""
    try:
        whole = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        seal, plain = whole[:_SEAL_BYTES], whole[_SEAL_BYTES:]
        if seal != _seal(plain, use, wanted, tenant):
            raise ValueError(cursor)
        return msgspec.json.decode(plain, type=form)
    except ValueError:
        raise Problem("invalid-cursor") from None


def _seal(plain: bytes, use: str, wanted: msgspec.Struct, tenant: str) -> bytes:
    """No secret is needed: a forged one shows its maker only the maker's own tasks."""
    return hashlib.sha256(msgspec.json.encode((use, tenant, wanted)) + plain).digest()[:_SEAL_BYTES]

"""Arguments of scripts: structs and lists as msgpack."""

import functools
from collections.abc import Sequence
from typing import Any, get_origin

import msgspec

from taskgate.contract.models import (
    Finish,
    HandBack,
    Held,
    Report,
    Served,
    Submission,
)

encode = msgspec.msgpack.Encoder().encode
fields_of = msgspec.structs.astuple


_NESTED = frozenset({list, tuple, Submission, Finish, HandBack, Report, Held, Served})


@functools.cache
def _texts_and_lists(kind: type[msgspec.Struct]) -> tuple[list[int], list[int]]:
    """Which of its fields are bytes, and which lists: most are neither, and there are many."""
    types = [get_origin(each.type) or each.type for each in msgspec.structs.fields(kind)]
    return [n for n, each in enumerate(types) if each is bytes], [n for n, each in enumerate(types) if each is list]


def _plain(values: Any) -> list[Any]:
    if isinstance(values, msgspec.Struct):
        fields = list(fields_of(values))
        texts, lists = _texts_and_lists(values.__class__)
        for n in texts:
            fields[n] = fields[n].decode()
        for n in lists:
            fields[n] = _plain(fields[n])
        return fields
    return [
        each.decode() if each.__class__ is bytes else _plain(each) if each.__class__ in _NESTED else each
        for each in values
    ]


def pack(items: Sequence[Any]) -> bytes:
    """Arguments of a script as msgpack, all texts as `str`: Lua's cmsgpack does not know the type for bytes."""
    return encode(_plain(items))

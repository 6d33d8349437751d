"""Bodies of `POST /tasks`: the gateway's reader takes what the reference takes, and understands the same."""

import random
from pathlib import Path
from typing import Any

import pydantic_core

from app import envelope
from app.errors import Problem
from tests.fuzz import reference
from tests.fuzz.mutate import mutated

CORPUS = Path(__file__).parent / "corpus" / "bodies"

WORDS = [
    *(f'"{name}":'.encode() for name in envelope.Envelope.__struct_fields__),
    *b'{ } [ ] , : " \\ \\" \\\\ \\/ \\u00e9 \\ud83d\\ude00 \\ud800 \\udc00 \\u0000 \\u0074ype null true'.split(),
    *b"false NaN Infinity -Infinity -0 0 -1 1 9 10 00 01 1.0 1. .5 1e2 1E+2 1e-2 1e 1e400 1e-400 -1e999 0x1 +1".split(),
    *b'"a" "" "any" "2026-11-29T12:00:00Z" "2026-11-29t12:00:00.5+01:30" "2026-11-29 12:00:00" "NaN" "inf"'.split(b" "),
    *(b"\xef\xbb\xbf", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", "é😀\u2028".encode(), b"\0", b"\x1f", b"\x7f"),
    *(b" ", b"\t", b"\n", b"\r", b"\x0b", b"\x0c", b"\xc2\xa0", b"/**/", b"#", b"'", b",,", b"{}", b"[]", b"[[", b"]]"),
    *(b"9" * 20, b"9" * 400, b"1" * 4301, b"[" * 199, b"[" * 200, b"]" * 200, b'{"a":' * 60, b"}" * 60),
]


def compare(body: bytes) -> bool:
    """Whether it was taken.

    Raises AssertionError: the two readers differ.
    """
    try:
        wanted = reference.read(body)
    except reference.Refused as refused:
        wanted, why = None, str(refused)
    problem: Problem | None = None
    try:
        found = envelope.parse(body)
        raw = bytes(found.payload)
        value = envelope.value_of(raw)
    except Problem as refusal:
        problem = refusal
    if problem is not None:
        assert problem.status in (400, 422), problem.slug
        assert wanted is None, f"refused as {problem.slug} {problem.detail} {problem.members}: {body!r}"
        return False
    assert wanted is not None, f"taken, but for the reference {why}: {body!r}"
    assert raw == wanted.payload.text, f"{raw!r} is not the payload of {body!r}"
    assert same(value, wanted.payload.value), f"{value!r} is not the value of {body!r}"
    assert same(pydantic_core.from_json(raw), wanted.payload.value), f"handlers would read {body!r} in another way"
    for name, member in wanted.members.items():
        if name not in ("run_at", "metadata"):
            assert getattr(found, name) == member, f"{name} of {body!r}"
    return True


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types: 1, 1.0 and true are three values."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def corpus() -> list[bytes]:
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def one(seeds: list[bytes], rng: random.Random) -> bytes:
    return mutated(seeds, WORDS, rng)

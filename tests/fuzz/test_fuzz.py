"""The fuzzers for a moment: their corpus, and as many mutations of it as there is time for."""

import random
from types import ModuleType

import pytest

from tests.fuzz import bodies, wire


@pytest.mark.parametrize("count", [500, pytest.param(8_000, marks=[pytest.mark.full, pytest.mark.timeout(300)])])
@pytest.mark.parametrize("fuzzer", [bodies, wire], ids=["bodies", "wire"])
def test_nothing_is_understood_in_two_ways(fuzzer: ModuleType, count: int) -> None:
    """What differs is told with its bytes; `python -m tests.fuzz` looks for more, and keeps what it finds."""
    seeds = fuzzer.corpus()
    taken = sum(fuzzer.compare(seed) for seed in seeds)
    assert 0 < taken < len(seeds)
    rng = random.Random(count)
    taken = sum(fuzzer.compare(fuzzer.one(seeds, rng)) for _ in range(count))
    assert count / 20 < taken < count


def test_the_reference_itself_is_strict() -> None:
    for body in (
        b"",
        b"[]",
        b'{"type":"a","payload":01}',
        b'{"type":"a","payload":"\xff"}',
        b'{"type":"a","payload":1,}',
    ):
        assert not bodies.compare(body)
    assert bodies.compare(b'{"type":"a","payload":[1,1.0,true,"\\ud83d\\ude00"]}')

"""Mutations of bytes: what fuzzers do to a corpus."""

import random
from collections.abc import Sequence


def mutated(seeds: Sequence[bytes], words: Sequence[bytes], rng: random.Random) -> bytes:
    """One of the seeds after a few random changes; `words` are pieces that mean something to the reader."""
    text = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.choice((1, 1, 2, 4, 16)))
        match rng.randrange(9):
            case 0:
                text[at:at] = rng.choice(words)
            case 1:
                text[at:to] = rng.choice(words)
            case 2:
                del text[at:to]
            case 3:
                text[at:to] = rng.randbytes(to - at)
            case 4:
                text[at:to] = bytes(text[at:to]) * rng.choice((2, 3))
            case 5 if at < len(text):
                text[at] ^= 1 << rng.randrange(8)
            case 6:
                other = rng.choice(seeds)
                start = rng.randrange(len(other) + 1)
                text[at:to] = other[start : start + rng.randrange(40)]
            case 7:
                start = rng.randrange(len(text) + 1)
                text[at:at] = text[start : start + rng.randrange(40)]
            case 8:
                del text[at:]
    return bytes(text)

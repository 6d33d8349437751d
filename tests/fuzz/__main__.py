"""`python -m tests.fuzz bodies|wire [SECONDS] [SEED]`: fuzz until something differs; it is kept in the corpus."""

import hashlib
import importlib
import random
import sys
import time


def main(what: str, seconds: int = 60, seed: int = 0) -> int:
    fuzzer = importlib.import_module(f"tests.fuzz.{what}")
    rng = random.Random(seed or time.time_ns())
    seeds = fuzzer.corpus()
    tried = taken = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = fuzzer.one(seeds, rng)
        tried += 1
        try:
            is_taken = fuzzer.compare(data)
        except Exception as error:  # noqa: BLE001
            path = fuzzer.CORPUS / hashlib.sha256(data).hexdigest()[:12]
            path.write_bytes(data)
            print(f"{path}: {type(error).__name__}: {error}"[:2000])
            return 1
        taken += is_taken
        if is_taken and len(seeds) < 5_000 and rng.random() < 0.02:
            seeds.append(data)
    print(f"{what}: {tried} tried, {taken} taken, none differed")
    return 0


if __name__ == "__main__":
    given = dict(zip(("seconds", "seed"), map(int, sys.argv[2:]), strict=False))
    sys.exit(main(sys.argv[1], **given))

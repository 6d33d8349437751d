"""What simulated users submit: webhook bodies from a folder, or made ones of the same sizes."""

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "WEBHOOK_FIXTURES"
"""A folder of real deliveries, one JSON file each, below it at any depth."""

_NOT_BODIES = frozenset({"manifest.json"})
_WORDS = ("opened", "closed", "naïve", "größer", "任务", "🚀", 'a "quoted" word', "back\\slash", "tab\there", "line\n")


@dataclass(frozen=True)
class Body:
    """One delivery as it came; `digest` is of its meaning, so whoever parsed it can show that nothing was lost."""

    event: str
    raw: bytes
    digest: str

    @classmethod
    def of(cls, event: str, raw: bytes) -> "Body":
        return cls(event, raw, digest(json.loads(raw)))


def digest(value: Any) -> str:
    """The same for equal values, however they were written."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def load(folder: Path | None) -> list[Body]:
    """All of a folder; without one, made bodies.

    Raises:
        OSError: there is none in the folder, or one is no JSON.
    """
    if folder is None:
        return made()
    files = sorted(path for path in folder.rglob("*.json") if path.name not in _NOT_BODIES)
    if not files:
        raise OSError(f"no webhook body (*.json) in {folder}")
    return [_of(path) for path in files]


def _of(path: Path) -> Body:
    try:
        return Body.of(path.name.partition(".")[0], path.read_bytes())
    except ValueError as error:
        raise OSError(f"{path} is no JSON: {error}") from None


def made(*, seed: int = 1) -> list[Body]:
    """The same ones each time: 1 to 32 KB, nested, with what is easily damaged on the way."""
    chance = random.Random(seed)
    return [Body.of(f"made-{kib}", json.dumps(_event(chance, kib * 1024)).encode()) for kib in (1, 2, 4, 8, 16, 32)]


def _event(chance: random.Random, size: int) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    event = {"action": chance.choice(_WORDS), "big": 2**53 - 1, "small": 1e-7, "none": None, "items": items}
    while len(json.dumps(event)) < size:
        words = " ".join(chance.choices(_WORDS, k=8))
        items.append({"id": chance.randrange(2**48), "text": words, "nested": {"flags": [True, False, None, {}]}})
    return event

"""What a readiness probe looks at, and the two forms in which it is told: for programs, and line by line for people."""

from collections.abc import Mapping

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One reason to be ready, or not."""

    ok: bool
    detail: str


def json(found: Mapping[str, Check]) -> bytes:
    return msgspec.json.encode({"status": "ready" if _ready(found) else "not ready", "checks": found})


def lines(found: Mapping[str, Check]) -> bytes:
    """As Kubernetes' own components say it."""
    said = [
        f"[{'+' if check.ok else '-'}]{name} {'ok' if check.ok else 'failed'}: {check.detail}\n"
        for name, check in found.items()
    ]
    return "".join([*said, f"readyz check {'passed' if _ready(found) else 'failed'}\n"]).encode()


def _ready(found: Mapping[str, Check]) -> bool:
    return all(check.ok for check in found.values())

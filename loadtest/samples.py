"""What a load test does to its service, looked at once a second: queue depth, and memory and CPU of each process."""

import contextlib
import http.client
import itertools
import json
import re
import ssl
import threading
import time
import urllib.request
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest import machine

_EVERY_S = 1.0
_ROLES = (
    (r"/workers/guard\.py\b", "guard"),
    (r"/up/guard\.py\b", "guard of up"),
    (r"\b(aof-rewrite|rdb-bgsave)\b", "Valkey's rewrite"),
    (r"\bvalkey-server\b", "Valkey"),
    (r"\btaskgate gateway\b", "gateway"),
    (r"\btaskgate worker\b", "supervisor"),
    (r"\btaskgate up\b", "up"),
    (r"\bworkers\.child\b.*\"kind\": ?\"async\"", "async child"),
    (r"\bworkers\.child\b", "sync child"),
    (r"\blocust\b", "users (locust)"),
)


@dataclass
class Sample:
    """One look. `waiting` and `running`: tasks, all queues together; None: the service did not say."""

    at_s: float
    waiting: int | None
    running: int | None
    rss_bytes: dict[str, int] = field(default_factory=dict)
    cores: dict[str, float] = field(default_factory=dict)
    """CPU that was used since the look before."""


class Sampler:
    """Looks while the block of its `with` runs, from a thread of its own."""

    def __init__(self, url: str, key: str, groups: Sequence[machine.Group]) -> None:
        self.samples: list[Sample] = []
        self._url = url
        self._key = key
        self._groups = groups
        self._roles: dict[int, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_again, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(sample) for sample in self.samples]

    def _look_again(self) -> None:
        before: dict[int, machine.Stat] = {}
        looked_s = time.monotonic()
        while True:
            found = {pid: stat for group in self._groups for pid, stat in group.processes().items()}
            now_s = time.monotonic()
            names = self._names(found)
            sample = Sample(time.time(), *self._depth(), {name: found[pid].rss_bytes for pid, name in names.items()})
            sample.cores = {
                name: round(max(0.0, found[pid].cpu_s - before[pid].cpu_s) / (now_s - looked_s), 3)
                for pid, name in names.items()
                if pid in before
            }
            self.samples.append(sample)
            before, looked_s = found, now_s
            if self._ended.wait(_EVERY_S):
                return

    def _names(self, found: Collection[int]) -> dict[int, str]:
        """A process keeps its name; those of one role are numbered as they come. What is none of ours yet has none."""
        for pid in sorted(set(found) - self._roles.keys()):
            if (is_a := role(_command(pid))) is not None:
                self._roles[pid] = numbered(is_a, set(self._roles.values()))
        return {pid: self._roles[pid] for pid in found if pid in self._roles}

    def _depth(self) -> tuple[int | None, int | None]:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
            queues = get_json(f"{self._url}/queues", self._key)["items"]
            return sum(each["waiting"] for each in queues), sum(each["running"] for each in queues)
        return None, None


def get_json(url: str, key: str) -> Any:
    """Whoever has signed its certificate, as the users take it: a service under test may have one of its own.

    Raises:
        OSError, http.client.HTTPException, ValueError: it does not answer so.
    """
    anyone = ssl.create_default_context()
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(request, timeout=5, context=anyone) as answer:
        return json.load(answer)


def role(command: str) -> str | None:
    """What a process of the service is, by its command line; None: something that has only just been started."""
    return next((name for pattern, name in _ROLES if re.search(pattern, command)), None)


def numbered(name: str, taken: Collection[str]) -> str:
    """`name`, or `name 2`, … where it is taken."""
    names = itertools.chain([name], (f"{name} {number}" for number in itertools.count(2)))
    return next(each for each in names if each not in taken)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""

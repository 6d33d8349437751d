"""What tests look up of processes and ports of this machine."""

import contextlib
import itertools
import os
import random
import socket
from pathlib import Path

_PORTS = 3_000
_FIRST_PORT = 20_000 + _PORTS * int(os.environ.get("PYTEST_XDIST_WORKER", "gw3").removeprefix("gw")) % 12_000
_next = itertools.count(random.randrange(_PORTS))


def free_port() -> int:
    """Of no other test process, and below those that the kernel gives to connections: it stays free until used."""
    while True:
        port = _FIRST_PORT + next(_next) % _PORTS
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def whole_lines(path: Path) -> list[str]:
    """Of a file that may grow meanwhile: a write over the end of a page is seen in two pieces."""
    return path.read_bytes().rpartition(b"\n")[0].decode().splitlines()


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def state_of(pid: int) -> str:
    """S sleeps, T is stopped, Z is dead; "" was reaped."""
    try:
        return _stat(pid)[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_s(pid: int) -> float:
    """For how long its main thread could run and had no CPU."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def _stat(pid: int) -> list[str]:
    """What /proc/PID/stat says behind the name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

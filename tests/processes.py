"""What tests look up of processes and ports of this machine."""

import os
import socket
from pathlib import Path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


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


def _stat(pid: int) -> list[str]:
    """What /proc/PID/stat says behind the name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

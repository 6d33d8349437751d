"""Task and worker ids, and the partition that follows from a task id."""

import hashlib
import os
import re
import socket
import threading
import time

_lock = threading.Lock()
_last = 0  # 60 bits: Unix milliseconds << 12 | counter

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Queues, task types and tenants: they stand in Redis keys, metrics and URLs."""


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


def new_task_id(partition_byte: int | None = None) -> str:
    """A UUIDv7 (RFC 9562), greater than every one made before it in this process.

    The twelve bits after the milliseconds count within one (method 1 of section 6.2). The last byte picks the
    partition: random, or `partition_byte` where tasks must lie together.
    """
    global _last
    with _lock:
        _last = max(_last + 1, (time.time_ns() // 1_000_000) << 12)
        stamp = _last
    tail = bytearray(os.urandom(8))
    tail[0] = tail[0] & 0x3F | 0x80
    if partition_byte is not None:
        tail[7] = partition_byte
    # By hand, since uuid.UUID would be half the cost of an id.
    head, rest = f"{(stamp >> 12) << 16 | 0x7000 | (stamp & 0xFFF):016x}", tail.hex()
    return f"{head[:8]}-{head[8:12]}-{head[12:]}-{rest[:4]}-{rest[4:]}"


def partition_byte(*parts: str) -> int:
    """The byte that makes all tasks of the same `parts` lie in one partition."""
    return hashlib.sha256("\0".join(parts).encode()).digest()[0]


def is_task_id(text: str) -> bool:
    """Whether `text` is a task id in its only accepted spelling (lower case, hyphens)."""
    return _TASK_ID.fullmatch(text) is not None


_TASK_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def partition_of(task_id: str, partitions: int) -> int:
    return int(task_id[-2:], 16) % partitions


def made_at_ms(task_id: str) -> int:
    """Unix milliseconds at which the id was made, by the clock of its gateway."""
    return int(task_id[:8] + task_id[9:13], 16)


def new_worker_id() -> str:
    """New at every process start: host and pid for people, random for uniqueness."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:24]
    return f"{host}-{os.getpid()}-{os.urandom(4).hex()}"

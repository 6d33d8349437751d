"""Task and worker ids, and the partition that follows from a task id."""

import hashlib
import os
import re
import socket
import threading
import time

_lock = threading.Lock()
_last = 0  # 60 bits: Unix milliseconds << 12 | counter
_random: list[int] = []
_RANDOM_BYTES = 8 * 512
"""Drawn at a time: a system call for each id costs more than the rest of it."""

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Queues, task types and tenants: they stand in Redis keys, metrics and URLs."""

NAME_RULE = "1 to 64 of A-Z a-z 0-9 . _ -"
"""The same for people."""


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


def new_task_id(partition_byte: int | None = None) -> str:
    """A UUIDv7 (RFC 9562), greater than every one made before it in this process.

    The twelve bits after the milliseconds count within one (method 1 of section 6.2). The last byte picks the
    partition: random, or `partition_byte` where tasks must lie together.
    """
    global _last, _random
    with _lock:
        _last = max(_last + 1, (time.time_ns() // 1_000_000) << 12)
        stamp = _last
        if not _random:
            _random = memoryview(os.urandom(_RANDOM_BYTES)).cast("Q").tolist()
        tail = _random.pop()
    tail = tail & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
    if partition_byte is not None:
        tail = tail & ~0xFF | partition_byte
    ms = stamp >> 12
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{stamp & 0xFFF:03x}-{tail >> 48:04x}-{tail & 0xFFFF_FFFF_FFFF:012x}"


def _after_fork() -> None:
    """A forked child must not go on with its parent's random bytes."""
    global _random
    _random = []


os.register_at_fork(after_in_child=_after_fork)


def partition_byte(*parts: str) -> int:
    """The byte that makes all tasks of the same `parts` lie in one partition."""
    return hashlib.sha256("\0".join(parts).encode()).digest()[0]


def key_hash(key: str) -> str:
    """By which Redis knows a unique or concurrency key; "" for none."""
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


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

"""What tasks print, on the supervisor's side: the pipes of a child, and what is kept of a task until it is written."""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from workers.frames import STDERR, STDOUT, Frames, new_mark
from workers.wire import Printed

READ_BYTES = 64 * 1024
"""All that a pipe holds."""
READS = 4
SHARE = 20
"""Reading what a child prints takes at most one part in so many of the supervisor's time; then the child waits."""
CREDIT_S, LONGEST_S = 0.05, 0.05
"""So much may be read ahead of that; and no child waits longer for the next look."""

KEPT_BYTES = 256 * 1024
KEPT_PIECES = 1000
"""Of one task, not written yet: the newest. The store keeps no more of it."""
AT_ONCE_BYTES = 64 * 1024
"""So much a report takes while the task runs."""
ENTRY_BYTES = 4096

_json = msgspec.json.encode


class Output:
    """The two pipes of a child: standard output, with the frames of Python's streams in it, and standard error.

    Raw output is that of the task that runs when it is found: a sync child goes on to another one only when both are
    empty, and nobody but us empties them.
    """

    def __init__(self, *, owner: Callable[[], int], take: Callable[[Printed], None]) -> None:
        """`owner`: the task that raw output belongs to now, 0: none."""
        self.mark = new_mark()
        self._owner = owner
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._paid_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        with contextlib.ExitStack() as undo:
            self.readers, self.writers = [], []
            for _ in (STDOUT, STDERR):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                undo.callback(os.close, reader)
                undo.callback(os.close, writer)
                os.set_blocking(reader, False)
                self.readers.append(reader)
                self.writers.append(writer)
            undo.pop_all()
        self._frames = {
            reader: Frames(self.mark, raw) for reader, raw in zip(self.readers, (STDOUT, STDERR), strict=True)
        }

    def started(self) -> None:
        """The child has its ends: close ours, listen."""
        self._close_writers()
        self._listen()

    def drain(self) -> None:
        """Read all that the pipes hold."""
        for reader in list(self._frames):
            for _ in range(READS):
                if not self._read(reader):
                    break

    def ended(self) -> None:
        """All who could write are dead: read what is left."""
        self.drain()
        for frames in self._frames.values():
            self._give(frames.rest(self._owner()))

    def close(self) -> None:
        """Idempotent."""
        self._close_writers()
        if self._timer is not None:
            self._timer.cancel()
        for reader in self.readers:
            self._loop.remove_reader(reader)
            os.close(reader)
        self.readers = []
        self._frames = {}

    def _close_writers(self) -> None:
        for writer in self.writers:
            os.close(writer)
        self.writers = []

    def _listen(self) -> None:
        self._timer = None
        for reader in self._frames:
            self._loop.add_reader(reader, self._readable, reader)

    def _readable(self, reader: int) -> None:
        # CPU time: that others of this machine were given the CPU meanwhile is not the child's fault.
        began_s, now_s = time.thread_time(), self._loop.time()
        if not self._read(reader):
            return
        self._paid_until_s = max(now_s, self._paid_until_s) + SHARE * (time.thread_time() - began_s)
        ahead_s = self._paid_until_s - now_s - CREDIT_S
        if ahead_s > 0 and self._timer is None and self._frames:
            for each in self._frames:
                self._loop.remove_reader(each)
            self._timer = self._loop.call_later(min(ahead_s, LONGEST_S), self._listen)

    def _read(self, reader: int) -> bool:
        """False: there was nothing."""
        # Asked before it is read: while it is there, the child cannot go on to another task.
        owner = self._owner()
        try:
            data = os.read(reader, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(reader)
            return False
        self._give(self._frames[reader].feed(data, owner))
        return True

    def _give(self, found: Iterable[Printed]) -> None:
        for printed in found:
            self._take(printed)


class Captured:
    """What a task has printed and is not written yet, the newest of it; what had to be dropped is counted."""

    __slots__ = ("_bytes", "_gap", "_lost", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[tuple[str, int, bytearray]] = deque()
        self._bytes = 0
        self._lost = 0
        """Since the last `take`."""
        self._gap = 0
        """Since the last entry: the next one tells of it."""

    def waits(self, *, whole: bool) -> bool:
        """Whether `take` would give anything."""
        return self._lost > 0 or any(whole or _complete(data) for _, _, data in self._pieces)

    def add(self, printed: Printed, now_ms: int) -> None:
        self._lose(printed.dropped)
        if not printed.data:
            return
        stream, _, last = self._pieces[-1] if self._pieces else ("", 0, b"")
        if stream == printed.stream and len(last) < ENTRY_BYTES:
            last += printed.data
        else:
            self._pieces.append((printed.stream, now_ms, bytearray(printed.data)))
        self._bytes += len(printed.data)
        while self._bytes > KEPT_BYTES or len(self._pieces) > KEPT_PIECES:
            self._drop()

    def take(self, attempt: int, *, whole: bool) -> tuple[list[tuple[bytes, int]], int]:
        """Entries for the store, oldest first, and bytes dropped before them. `whole`: all of it, nothing follows."""
        entries: list[tuple[bytes, int]] = []
        lost, self._lost, taken = self._lost, 0, 0
        while self._pieces and (whole or taken < AT_ONCE_BYTES):
            stream, at_ms, data = self._pieces.popleft()
            while self._pieces and self._pieces[0][0] == stream and len(data) < AT_ONCE_BYTES:
                data += self._pieces.popleft()[2]
            rest = bytearray() if whole or self._pieces else data[_complete(data) :]
            for text in _entries(data[: len(data) - len(rest)]):
                entries.append((_entry(attempt, stream, at_ms, text, self._gap), len(text)))
                self._gap = 0
            taken += len(data) - len(rest)
            if rest:
                self._pieces.append((stream, at_ms, rest))
                break
        self._bytes -= taken
        return entries, lost

    def _drop(self) -> None:
        """The oldest of it; then it goes on with a whole character."""
        stream, _, data = self._pieces.popleft()
        lost = len(data)
        if self._pieces and self._pieces[0][0] == stream:
            following = self._pieces[0][2]
            cut = next((n for n, byte in enumerate(following[:4]) if byte & 0xC0 != 0x80), 0)
            del following[:cut]
            lost += cut
        self._bytes -= lost
        self._lose(lost)

    def _lose(self, count: int) -> None:
        self._lost += count
        self._gap += count


def _entry(attempt: int, stream: str, at_ms: int, text: bytes, gap: int) -> bytes:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"attempt": attempt, "stream": stream, "at": at, "text": text.decode("utf-8", "backslashreplace")}
    return _json(entry | {"dropped_bytes": gap} if gap else entry)


def _entries(data: bytearray) -> Iterable[bytes]:
    """Whole lines where they are short enough, whole characters else."""
    at = 0
    while len(data) - at > ENTRY_BYTES:
        cut = data.rfind(b"\n", at, at + ENTRY_BYTES) + 1 or at + _complete(data[at : at + ENTRY_BYTES])
        yield bytes(data[at:cut])
        at = cut
    if at < len(data):
        yield bytes(data[at:])


def _complete(data: bytearray) -> int:
    """Up to where whole characters go: the last one may be cut."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if width > back else len(data)
        if byte < 0x80:
            break
    return len(data)

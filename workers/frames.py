"""How Python's streams of a child mark what they write into its output pipe: whose it is, and which stream's."""

import secrets
import select
import struct
from collections.abc import Iterator

from workers.wire import Printed

STREAMS = ("stdout", "stderr", "log")
STDOUT, STDERR, LOG = range(3)

_HEAD = struct.Struct("<BQH")
_MARK_BYTES = 17


def new_mark() -> bytes:
    """What begins every frame of one child: no output has it by chance."""
    return b"\0" + secrets.token_hex(8).encode()


def frames(mark: bytes, stream: int, seq: int, data: bytes | memoryview) -> Iterator[tuple[bytes, int]]:
    """`data` of task `seq` (0: of none) in frames, and how much of it each holds. A pipe takes a frame whole."""
    most = select.PIPE_BUF - _MARK_BYTES - _HEAD.size
    for at in range(0, len(data), most):
        part = data[at : at + most]
        yield mark + _HEAD.pack(stream, seq, len(part)) + part, len(part)


class Frames:
    """Takes apart what was read from a pipe. What is in no frame is raw: C code wrote it, or another program."""

    def __init__(self, mark: bytes, raw: int) -> None:
        """`raw`: the stream of what is in no frame."""
        self._mark = mark
        self._raw = STREAMS[raw]
        self._rest = b""

    def feed(self, data: bytes, owner: int) -> list[Printed]:
        """In order; raw output is that of task `owner`."""
        data, self._rest, at = self._rest + data, b"", 0
        found: list[Printed] = []
        while at < len(data):
            start = data.find(self._mark, at)
            stop = self._possible_start(data, at) if start < 0 else start
            if stop > at:
                found.append(Printed(owner, self._raw, data[at:stop]))
            head_ends = stop + _MARK_BYTES + _HEAD.size
            if len(data) < head_ends:
                self._rest = data[stop:]
                break
            stream, seq, size = _HEAD.unpack_from(data, stop + _MARK_BYTES)
            at = head_ends + size
            if len(data) < at:
                self._rest = data[stop:]
                break
            found.append(Printed(seq, STREAMS[stream % len(STREAMS)], data[head_ends:at]))
        return found

    def rest(self, owner: int) -> list[Printed]:
        """What looked like the start of a frame and was none: nothing follows it."""
        data, self._rest = self._rest, b""
        return [Printed(owner, self._raw, data)] if data and not data.startswith(self._mark) else []

    def _possible_start(self, data: bytes, at: int) -> int:
        """Where at the end of `data` a mark may have begun; its length where none has."""
        start = data.rfind(b"\0", max(at, len(data) - _MARK_BYTES))
        return start if start >= 0 and self._mark.startswith(data[start:]) else len(data)

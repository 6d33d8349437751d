"""The slot: shared memory in which a child shows what it runs, and in which it is asked to stop a task.

A header of 64-bit words, then one record per task the child may hold. Words are stored whole; progress and waiting are
packed at once with a counter first and last, and believed when both are equal in two equal reads.
"""

import itertools
import math
import mmap
import os
import struct
import time
from enum import IntEnum
from typing import NamedTuple

import msgspec

RECEIVED, RUNNING, STARTED_NS, NOTED, STEPS, GC_NS = range(6)
_STOP_SEQ, _STOP_REASON, _SEQ, _BEGUN_NS = range(4)

_HEADER = 64
_RECORD = 512
_WAITING = struct.Struct("@QQ56sQ")
_WAITING_AT = 32
_PROGRESS = struct.Struct("@QQddq24s64s200sQ")
_PROGRESS_AT = _WAITING_AT + _WAITING.size
_CHILDS_PART = slice(16, _RECORD)
"""Of a record, what the child writes and zeroes; the words before it are the supervisor's."""
_BELIEVED = slice(_PROGRESS_AT + _PROGRESS.size)
"""What must be the same in two reads. The words behind it are each whole, and may move all the time."""
_BEGAN_CPU_NS, _BEGAN_GC_NS, _TASK_STEPS, _TASK_CALLS = range(_BELIEVED.stop // 8, _BELIEVED.stop // 8 + 4)

_READS = 100
_pack_progress = _PROGRESS.pack_into
_clock = time.clock_gettime_ns
_BOOTTIME = time.CLOCK_BOOTTIME


def boot_ns() -> int:
    """The clock of leases and starts: monotonic, the same in every process, and going on while the machine sleeps."""
    return _clock(_BOOTTIME)


class StopReason(IntEnum):
    CANCEL = 1
    TIMEOUT = 2
    DRAIN = 3


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """What a handler reported last. `at_ns`: boot clock."""

    current: float
    total: float | None
    unit: str
    stage: str
    message: str
    at_ns: int

    def json(self, *, attempt: int, base: "Progress | None" = None, now_ms: int, now_ns: int) -> bytes:
        """As the record and its events show it; `now_ms` (Unix) and `now_ns` (boot clock) are the same moment.

        `base`: where the attempt began, if that was not at nothing.
        """
        percent = None
        if self.total and math.isfinite(self.total) and math.isfinite(self.current):
            percent = round(min(100.0, max(0.0, 100 * self.current / self.total)), 1)
        ahead_ms = now_ms - now_ns // 1_000_000
        began = {} if base is None else {"base": _plain(base.current), "base_ms": base.at_ns // 1_000_000 + ahead_ms}
        return msgspec.json.encode(
            {
                "attempt": attempt,
                "current": _plain(self.current),
                "total": None if self.total is None else _plain(self.total),
                "percent": percent,
                "unit": self.unit,
                "stage": self.stage,
                "message": self.message,
                "at_ms": self.at_ns // 1_000_000 + ahead_ms,
                **began,
            }
        )


class TaskSample(NamedTuple):
    seq: int
    started_ns: int
    progress: Progress | None
    waiting: str | None
    """The text of `attempt.waiting(…)` while the task is inside it."""
    cpu_ns: int = 0
    """CPU time of the child when the task began."""
    gc_ns: int = 0
    """Its GC pauses then."""
    steps: int = 0
    """Async: how many steps of the event loop were the task's."""
    calls: int = 0
    """Async: its calls in threads that have not ended."""


class Sample(NamedTuple):
    received: int
    """Highest sequence the child has received."""
    running: int
    """Sync: the sequence running now, 0 when idle. Async: 0, see `tasks`."""
    started_ns: int
    noted: int
    """Async: the sequence being stepped now, 0 for none."""
    steps: int
    gc_ns: int
    tasks: dict[int, TaskSample]


class Slot:
    """One child's shared memory; the same class on both sides."""

    def __init__(self, fd: int, records: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _size(records))
        self.words = memoryview(self._memory).cast("Q")
        self.records = [Record(self._memory, self.words, _HEADER + i * _RECORD) for i in range(records)]

    @classmethod
    def create(cls, records: int) -> "Slot":
        fd = os.memfd_create("taskgate-slot", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, _size(records))
            return cls(fd, records)
        except OSError:
            os.close(fd)
            raise

    def sample(self) -> Sample:
        words = self.words
        running, started_ns = words[RUNNING], words[STARTED_NS]
        if words[RUNNING] != running:
            running, started_ns = words[RUNNING], words[STARTED_NS]
        tasks = {task.seq: task for record in self.records if record.seq and (task := record.sample())}
        return Sample(words[RECEIVED], running, started_ns, words[NOTED], words[STEPS], words[GC_NS], tasks)

    def close(self) -> None:
        self.words.release()
        self._memory.close()
        os.close(self.fd)


class Record:
    """The part of a slot that belongs to one task at a time."""

    def __init__(self, memory: mmap.mmap, words: memoryview, offset: int) -> None:
        self._memory = memory
        self._words = words
        self._offset = offset
        self._word = offset // 8
        self._seen: Progress | None = None
        self._seen_seq = 0

    @property
    def seq(self) -> int:
        return self._words[self._word + _SEQ]

    def begin(self, seq: int, started_ns: int, *, cpu_ns: int = 0, gc_ns: int = 0) -> None:
        """Child: the record is now that of `seq`; nothing of the task before is left, however late it was written."""
        self.end()
        self._words[self._word + _BEGUN_NS] = started_ns
        self._words[self._word + _BEGAN_CPU_NS] = cpu_ns
        self._words[self._word + _BEGAN_GC_NS] = gc_ns
        self._words[self._word + _SEQ] = seq

    def end(self) -> None:
        """Child: nobody's record, and nothing can be read in it."""
        start = self._offset
        self._words[self._word + _SEQ] = 0
        self._memory[start + _CHILDS_PART.start : start + _CHILDS_PART.stop] = _ZEROES

    def ask_stop(self, seq: int, reason: StopReason) -> None:
        """Supervisor: `seq` is to stop. The reason first: the child looks at the sequence."""
        self._words[self._word + _STOP_REASON] = reason
        self._words[self._word + _STOP_SEQ] = seq

    def stop_reason(self, seq: int) -> StopReason | None:
        """Child: why `seq` is to stop, None when it is not."""
        if self._words[self._word + _STOP_SEQ] != seq:
            return None
        return StopReason(self._words[self._word + _STOP_REASON])

    def said(self) -> Progress | None:
        """Child: the last progress; None: none since `begin`."""
        if not self._words[self._word + _PROGRESS_AT // 8]:
            return None
        shown = self.sample()
        return shown.progress if shown else None

    @property
    def steps_word(self) -> int:
        """Child: which of the slot's words counts the steps of the task."""
        return self._word + _TASK_STEPS

    def calls(self, count: int) -> None:
        """Child: so many calls in threads have not ended."""
        self._words[self._word + _TASK_CALLS] = count

    def writer(self, seq: int) -> "Writer":
        return Writer(self._memory, self._offset, seq)

    def sample(self) -> TaskSample | None:
        """None between tasks. A progress that is never seen whole shows as the one seen before it."""
        for _ in range(_READS):
            raw = self._memory[self._offset : self._offset + _RECORD]
            if raw[_BELIEVED] != self._memory[self._offset : self._offset + _BELIEVED.stop]:
                continue
            _, _, seq, started_ns = struct.unpack_from("@QQQQ", raw)
            if not seq:
                return None
            first, owner, text, last = _WAITING.unpack_from(raw, _WAITING_AT)
            waiting = _text(text) if owner == seq and first == last and text[0] else None
            first, owner, current, total, at_ns, unit, stage, message, last = _PROGRESS.unpack_from(raw, _PROGRESS_AT)
            # Packing begins with zeroes: a writer that lost its CPU there has not taken back what it said before.
            if first != last or (not first and self._seen_seq == seq and self._seen is not None):
                continue
            self._seen_seq, self._seen = seq, None
            if owner == seq:
                known_total = None if math.isnan(total) else total
                self._seen = Progress(current, known_total, _text(unit), _text(stage), _text(message), at_ns)
            return self._shown(seq, started_ns, self._seen, waiting)
        seq = self.seq
        seen = self._seen if self._seen_seq == seq else None
        return self._shown(seq, self._words[self._word + _BEGUN_NS], seen, None) if seq else None

    def _shown(self, seq: int, started_ns: int, progress: Progress | None, waiting: str | None) -> TaskSample:
        at = self._word + _BEGAN_CPU_NS
        return TaskSample(seq, started_ns, progress, waiting, *self._words[at : at + 4])


class Writer:
    """What an attempt writes into its record, from any thread. `seq` lets readers drop a write that came too late."""

    __slots__ = ("_count", "_memory", "_progress_at", "_seq", "_waiting_at")

    def __init__(self, memory: mmap.mmap, offset: int, seq: int) -> None:
        self._memory = memory
        self._progress_at = offset + _PROGRESS_AT
        self._waiting_at = offset + _WAITING_AT
        self._seq = seq
        self._count = itertools.count(1).__next__  # one C call: no two threads get the same number

    def progress(self, current: float, total: float | None, unit: str, stage: str, message: str) -> None:
        count = self._count()
        _pack_progress(
            self._memory,
            self._progress_at,
            count,
            self._seq,
            current,
            _NAN if total is None else total,
            _clock(_BOOTTIME),
            unit.encode("utf-8", "replace"),
            stage.encode("utf-8", "replace"),
            message.encode("utf-8", "replace"),
            count,
        )

    def waiting(self, text: str) -> None:
        """`text` "" ends it."""
        count = self._count()
        _WAITING.pack_into(self._memory, self._waiting_at, count, self._seq, text.encode("utf-8", "replace"), count)


_NAN = math.nan
_ZEROES = bytes(_CHILDS_PART.stop - _CHILDS_PART.start)


def _size(records: int) -> int:
    return _HEADER + records * _RECORD


def _text(raw: bytes) -> str:
    """The packed text; a character that was cut in two at the end is dropped."""
    return raw.rstrip(b"\0").decode("utf-8", "ignore")


def _plain(number: float) -> float | int | None:
    """JSON has no infinities; whole numbers are shown whole."""
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number

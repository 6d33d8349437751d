"""Where a child's output goes: everything that Python writes is marked as that of the task which writes it."""

import contextlib
import ctypes
import io
import logging
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import structlog

from taskgate.contract import logs
from workers.frames import LOG, STDERR, STDOUT, frames
from workers.loggers import Loggers
from workers.wire import Kind, Printed

UNREAD_S = 10.0
"""What is not read by then is that of a process which goes on printing. Where nobody reads, the guard comes before."""
_PAUSES_S = 0.0001, 0.002
_OWN_PIPE = "/proc/self/fd/1"
_IONBF = 2
STREAMS, LOGGERS = "standard streams", "loggers"
"""What handlers have changed, in words."""
log = structlog.get_logger()

_KNOWN = ("timestamp", "task_id", "task_type", "attempt")
"""Of a log line, what its task says anyway."""


class Streams:
    """`sys.stdout`, `sys.stderr` and the loggers of this process."""

    def __init__(self, *, kind: Kind, mark: bytes, readers: Sequence[int], service: TextIO) -> None:
        """`readers`: the supervisor's ends of our pipes, to see whether anything is in them. `service`: where the
        service's own log goes.
        """
        self.current: Callable[[], int] = lambda: 0
        """The task that writes now, 0: none."""
        self._mark = mark
        self._service = service
        self._patient = kind == "sync"
        self._wrote: set[int] = set()
        self._dropped: Counter[int] = Counter()
        self._ends = [os.dup(number) for number in (1, 2)]
        self._files = _files()
        # An async child's own opening of the pipe does not wait; that of the programs that it starts does.
        self._pipe = self._ends[0] if self._patient else os.open(_OWN_PIPE, os.O_WRONLY | os.O_NONBLOCK)
        self._unread = select.poll()
        for reader in readers:
            self._unread.register(reader, select.POLLIN)
        # A sync task's goes the same way as that of programs which it starts: it stays in order.
        self._out = _text(1, "<stdout>", _write_raw if self._patient else lambda data: self.put(STDOUT, data))
        self._err = _text(2, "<stderr>", lambda data: self.put(STDERR, data))
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr = self._out, self._err  # type: ignore[misc]
        self._loggers = Loggers()
        _unbuffer_c()

    def remember(self) -> None:
        """The loggers are now as every task is to find them."""
        self._loggers.remember()

    def install(self) -> list[str]:
        """Undo, for the next task, what handlers did to Python's streams and to all loggers; what that was."""
        undone = []
        out, err = self._out, self._err
        if sys.stdout is not out or sys.stderr is not err or out.__dict__ or err.__dict__:
            sys.stdout, sys.stderr = out, err
            out.__dict__.clear()
            err.__dict__.clear()
            undone.append(STREAMS)
        if self._loggers.restore():
            undone.append(LOGGERS)
        return undone

    def restore(self) -> list[str]:
        """The descriptors too: two system calls, which a sync child can afford before every task."""
        undone = self.install()
        if _files() == self._files:
            return undone
        for number, end in zip((1, 2), self._ends, strict=True):
            os.dup2(end, number)
        return undone if STREAMS in undone else [STREAMS, *undone]

    def restore_all(self) -> list[str]:
        """And what costs more to look at: whether writing waits for room, and single loggers."""
        undone = set(self.restore())
        for end in self._ends:
            if not os.get_blocking(end):
                os.set_blocking(end, True)
                undone.add(STREAMS)
        if self._loggers.restore_all():
            undone.add(LOGGERS)
        return [name for name in (STREAMS, LOGGERS) if name in undone]

    def put(self, stream: int, data: bytes | memoryview) -> None:
        """Write for the current task. An async one never waits, its neighbours would too: it drops what has no room."""
        seq = self.current()
        if self._patient:
            for frame, _ in frames(self._mark, stream, seq, data):
                _write(self._pipe, frame)
            return
        self._wrote.add(seq)
        for frame, size in frames(self._mark, stream, seq, data):
            try:
                os.write(self._pipe, frame)
            except BlockingIOError:
                self._dropped[seq] += size

    def settle(self, within_s: float) -> bool:
        """Sync: wait until all output has been read, so that what follows is another task's. False: it goes on."""
        waited, pause = 0.0, _PAUSES_S[0]
        while self._unread.poll(0):
            if waited > within_s:
                return False
            time.sleep(pause)
            waited, pause = waited + pause, min(_PAUSES_S[1], 2 * pause)
        return True

    def last_word(self, seq: int) -> Printed | None:
        """Async: what is to be sent before the end of a task, so that its output is read by then; None: it has none."""
        if seq not in self._wrote:
            return None
        self._wrote.discard(seq)
        return Printed(seq, "stdout", b"", self._dropped.pop(seq, 0))

    def take_logs(self, log_format: logs.LogFormat, level: str) -> None:
        """Loggers write for the current task; while there is none, into the service's log."""
        logs.configure(log_format, level, stream=self._service, before=self._capture)
        numeric = logging.getLevelNamesMapping()[level.upper()]
        logging.basicConfig(handlers=[_Handler(self, max(numeric, logging.WARNING))], level=numeric, force=True)

    def log(self, line: str) -> None:
        self.put(LOG, line.encode("utf-8", "backslashreplace") + b"\n")

    def _capture(self, _logger: Any, _method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if not self.current():
            return fields
        self.log(_line(dict(fields)))
        raise structlog.DropEvent


class _Text(io.TextIOWrapper):
    """Handlers may close, detach or reconfigure what they are given; the next task's output does not suffer."""

    def close(self) -> None:
        self.flush()

    def detach(self) -> Any:
        self.flush()
        return self.buffer

    def reconfigure(self, **_: Any) -> None:
        return None


class _Writer(io.RawIOBase):
    """Unbuffered: a process that is killed has told all that it printed."""

    def __init__(self, number: int, name: str, write: Callable[[memoryview], None]) -> None:
        self.name = name
        self._number = number
        self._write = write

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._write(view)
        return len(view)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        return None


class _Handler(logging.Handler):
    """The standard library's loggers. `least`: the level from which on a line is written while no task runs."""

    def __init__(self, streams: Streams, least: int) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self._streams = streams
        self._least = least

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._streams.current():
                self._streams.log(self.format(record))
            elif record.levelno >= self._least:
                # As one line of the service's log, whatever is in it.
                say = log.error if record.levelno >= logging.ERROR else log.warning
                say(record.getMessage(), logger=record.name, exc_info=record.exc_info)
        except Exception:  # noqa: BLE001 — what a handler logs may not be printable; the library's own way to say so
            self.handleError(record)


def _text(number: int, name: str, write: Callable[[memoryview], None]) -> _Text:
    return _Text(_Writer(number, name, write), "utf-8", "backslashreplace", newline="\n", write_through=True)


def _write_raw(data: memoryview) -> None:
    while data:
        data = data[_write(1, data) :]


def _write(number: int, data: bytes | memoryview) -> int:
    """Also where it must be waited for: whoever inherits our pipes may set them not to, for us as well."""
    while True:
        try:
            return os.write(number, data)
        except BlockingIOError:
            room = select.poll()
            room.register(number, select.POLLOUT)
            room.poll()


def _files() -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Which files the two descriptors are; None: one is closed."""
    try:
        return os.fstat(1)[1:3], os.fstat(2)[1:3]
    except OSError:
        return None


def _unbuffer_c() -> None:
    """C code's `printf`: what it kept for later would be taken for the next task's."""
    with contextlib.suppress(ValueError, OSError):  # a C library without that name
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IONBF, 0)


def _line(fields: dict[str, Any]) -> str:
    """A structlog line as text: level, event, `name=value`."""
    for name in _KNOWN:
        fields.pop(name, None)
    words = [str(fields.pop("level", "")), str(fields.pop("event", ""))]
    exception = fields.pop("exception", None)
    words += [
        f"{name}={value if isinstance(value, str) and ' ' not in value else repr(value)}"
        for name, value in fields.items()
    ]
    return " ".join(filter(None, words)) + (f"\n{exception}" if exception else "")

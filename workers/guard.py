"""The guard: a process that stops the children of a supervisor which cannot confirm its lease, and ends them when that
lasts too long or the supervisor is dead. This file is what runs in it; the supervisor's side is `workers.guard_client`.

Run by its path with -I -S and the standard library alone: it must be small, and in nobody's way.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
import time

MESSAGE = struct.Struct("=cqQ")
"""Operation, value, number of the request (0: no answer wanted). From the guard: operation, 0, number."""

ADD, REMOVE, DEADLINE, SYNC = b"a", b"r", b"d", b"s"
"""Groups come and go; the boot-clock ns up to which the lease is sure; only answer."""

DONE, PAUSED, RESUMED = b"k", b"p", b"c"

_CLOEXEC, _ABSOLUTE = os.O_CLOEXEC, 1
_LOCK_CURRENT, _LOCK_FUTURE, _LOCK_ON_FAULT = 1, 2, 4


class Timer:
    """A timer on the boot clock: after a suspended night it fires at once, where a timeout would still be counting."""

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._libc = libc
        self.fd: int = libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_NONBLOCK | _CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_ns: int) -> None:
        """Fire at `at_ns`, at once if that is over; 0 is never."""
        value = struct.pack("=qqqq", 0, 0, *divmod(at_ns, 1_000_000_000))
        self._libc.timerfd_settime(self.fd, _ABSOLUTE, value, None)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)


class Guard:
    """Stops all groups at the deadline, lets them go on when it moves, kills them `pause_ns` after it."""

    def __init__(self, channel: socket.socket, timer: Timer, *, pause_ns: int) -> None:
        self._channel = channel
        self._timer = timer
        self._pause_ns = pause_ns
        self._groups: set[int] = set()
        self._deadline_ns = 0
        self._paused = False

    def run(self) -> None:
        """Until the supervisor is gone; then nothing of its is left."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._timer.fd, select.POLLIN)
        while True:
            self._timer.set(self._next_ns())
            for fd, _ in poll.poll():
                if fd == self._timer.fd:
                    self._timer.clear()
                elif not self._read():
                    self._kill_all()
                    return
            self._look()

    def _next_ns(self) -> int:
        """When something must be done next; 0: nothing."""
        if not self._paused:
            return self._deadline_ns
        return self._deadline_ns + self._pause_ns if self._groups else 0

    def _look(self) -> None:
        if not self._deadline_ns:
            return
        late_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._deadline_ns
        if late_ns < 0 and self._paused:
            self._paused = False
            self._signal_all(signal.SIGCONT)
            self._tell(RESUMED)
        elif late_ns >= 0 and not self._paused:
            self._paused = True
            self._signal_all(signal.SIGSTOP)
            self._tell(PAUSED)
        if late_ns >= self._pause_ns:
            self._kill_all()

    def _read(self) -> bool:
        """Take all that has come; False at its end."""
        while True:
            try:
                message = self._channel.recv(MESSAGE.size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if len(message) != MESSAGE.size:
                return False
            operation, value, number = MESSAGE.unpack(message)
            self._take(operation, value)
            if number:
                self._tell(DONE, number)

    def _take(self, operation: bytes, value: int) -> None:
        if operation == ADD:
            self._groups.add(value)
            # SIGCONT too: the guard before this one may have stopped it.
            _signal(value, signal.SIGSTOP if self._paused else signal.SIGCONT)
        elif operation == REMOVE:
            self._groups.discard(value)
        elif operation == DEADLINE:
            self._deadline_ns = value
            self._look()

    def _signal_all(self, number: signal.Signals) -> None:
        for group in self._groups:
            _signal(group, number)

    def _kill_all(self) -> None:
        self._signal_all(signal.SIGKILL)
        self._groups.clear()

    def _tell(self, operation: bytes, number: int = 0) -> None:
        # A supervisor that is stopped reads nothing; what it misses then, it does not need.
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._channel.send(MESSAGE.pack(operation, 0, number), socket.MSG_DONTWAIT)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def main() -> None:
    fd, pause_ns = int(sys.argv[1]), int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    # Neither swapping nor a busy machine may make it late; without the rights it works all the same.
    libc.mlockall(_LOCK_CURRENT | _LOCK_FUTURE | _LOCK_ON_FAULT)
    with contextlib.suppress(OSError):
        os.nice(-5)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    Guard(socket.socket(fileno=fd), Timer(libc), pause_ns=pause_ns).run()


if __name__ == "__main__":
    main()

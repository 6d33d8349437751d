"""The guard of `taskgate up`: runs the embedded Valkey and, when `up` is gone, ends what it had started, Valkey last.

`guard.py SOCKET GRACE_S [FOLDER COMMAND…]`: standard library only, run by path, in a session of its own. `up` sends it
a pidfd for each process it has started; it answers with JSON about Valkey. End of file: `up` has stopped or died.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_BACKOFF_S = (0.2, 10.0)
_STEADY_S = 30.0
_VALKEY_STOP_S = 10.0
TUNABLES = "glibc.malloc.tcache_count=1000"
"""The wheel's Valkey uses the C library's malloc: more small pieces at hand save a tenth of its work for a task."""


def _exited(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


class Valkey:
    """The server: started when no other one works in its folder, started again, with backoff, when it exits."""

    def __init__(self, folder: str, command: list[str]) -> None:
        self._folder = folder
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self.pidfd: int | None = None
        self._started = 0.0
        self._delay_s = _BACKOFF_S[0]
        self._due: float | None = time.monotonic()
        self._waits = False

    def due_in_s(self) -> float | None:
        """Seconds until `look` has something to do; None: not before it exits."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def look(self) -> dict[str, object] | None:
        """Start it if that is due, notice its exit; what there is to tell."""
        if self.pidfd is not None:
            return self._bury() if _exited(self.pidfd) else None
        if self._due is None or time.monotonic() < self._due:
            return None
        try:
            return self._start()
        except OSError as error:
            return {"event": "valkey not started", "error": str(error), "again_in_s": self._back_off()}

    def stop(self) -> None:
        if self._process is None or self.pidfd is None:
            return
        self._process.terminate()
        if not select.select([self.pidfd], [], [], _VALKEY_STOP_S)[0]:
            self._process.kill()
        self._process.wait()

    def _start(self) -> dict[str, object] | None:
        with contextlib.ExitStack() as stack:
            # Its own descriptor holds the lock: while it lives, whoever started it, no second server writes its file.
            lock = os.open(f"{self._folder}/valkey.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._due = time.monotonic() + 0.1
                told, self._waits = self._waits, True
                return None if told else {"event": "valkey waits for that of an earlier run to end"}
            log = stack.enter_context(Path(self._folder, "valkey.log").open("ab"))
            tether = [sys.executable, "-I", "-S", str(Path(__file__).with_name("tether.py")), str(int(signal.SIGTERM))]
            self._process = subprocess.Popen(
                [*tether, str(os.getpid()), *self._command],
                cwd=self._folder,
                env={"GLIBCTUNABLES": TUNABLES, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,
                umask=0o077,
            )
        self.pidfd = os.pidfd_open(self._process.pid)
        self._started = time.monotonic()
        self._due = None
        self._waits = False
        return {"event": "valkey started", "pid": self._process.pid}

    def _bury(self) -> dict[str, object]:
        assert self._process is not None
        assert self.pidfd is not None
        os.close(self.pidfd)
        self.pidfd = None
        lived_s = time.monotonic() - self._started
        if lived_s > _STEADY_S:
            self._delay_s = _BACKOFF_S[0]
        code = self._process.wait()
        return {
            "event": "valkey exited",
            "pid": self._process.pid,
            "exit_code": code,
            "again_in_s": self._back_off(),
        }

    def _back_off(self) -> float:
        delay_s = self._delay_s
        self._delay_s = min(_BACKOFF_S[1], delay_s * 2)
        self._due = time.monotonic() + delay_s
        return delay_s


class Guard:
    """Keeps a pidfd of every process that is to end with `up`, and sees to Valkey."""

    def __init__(self, up: socket.socket, *, grace_s: float, valkey: Valkey | None) -> None:
        self._up: socket.socket | None = up
        self._grace_s = grace_s
        self._valkey = valkey
        self._wards: dict[int, int] = {}

    def run(self) -> None:
        while self._up:
            self._turn()
        self._end_wards()
        if self._valkey:
            self._valkey.stop()

    def _turn(self, at_most_s: float | None = None) -> None:
        """Wait for whatever comes first, and see to it."""
        valkey = self._valkey
        if valkey and (news := valkey.look()):
            self._tell(news)
        due_in_s = valkey.due_in_s() if valkey else None
        waits_s = [wait_s for wait_s in (at_most_s, due_in_s) if wait_s is not None]
        up = self._up.fileno() if self._up else None
        watched = [*self._wards, *([] if up is None else [up])]
        if valkey and valkey.pidfd is not None:
            watched.append(valkey.pidfd)
        ready, _, _ = select.select(watched, [], [], min(waits_s, default=None))
        for pidfd in self._wards.keys() & set(ready):
            os.close(pidfd)
            del self._wards[pidfd]
        if self._up and up in ready:
            self._receive(self._up)

    def _tell(self, news: dict[str, object]) -> None:
        if self._up:
            with contextlib.suppress(OSError):
                self._up.send(json.dumps(news).encode(), socket.MSG_DONTWAIT)

    def _receive(self, up: socket.socket) -> None:
        try:
            message, pidfds, _, _ = socket.recv_fds(up, 64, 1)
        except OSError:
            message, pidfds = b"", []
        if message:
            self._wards |= dict.fromkeys(pidfds, int(message))
        else:
            self._up = None

    def _end_wards(self) -> None:
        """Ask, wait for the grace, kill: a supervisor that was asked hands its tasks back."""
        for pidfd in self._wards:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self._wards and (left_s := deadline - time.monotonic()) > 0:
            self._turn(left_s)
        for pid in self._wards.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        deadline = time.monotonic() + 1
        while self._wards and (left_s := deadline - time.monotonic()) > 0:
            self._turn(left_s)


def main() -> None:
    # Only the end of `up` ends it: a service manager that asks everybody must not take Valkey from those who hand back.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # SIG_IGN would be inherited by Valkey
    descriptor, grace_s, *server = sys.argv[1:]
    valkey = Valkey(server[0], server[1:]) if server else None
    with socket.socket(fileno=int(descriptor)) as up:
        Guard(up, grace_s=float(grace_s), valkey=valkey).run()


if __name__ == "__main__":
    main()

"""The supervisor's side of one child: start it, hand tasks over, take them back, watch, stop and bury it."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from taskgate.contract.models import Claimed
from taskgate.tracing import TraceContext
from workers import orphans, wire
from workers.dumps import STACK_SIGNAL, Dumps
from workers.output import Output
from workers.procstat import Memory, zombie_peak_bytes
from workers.slot import NOTED, RECEIVED, RUNNING, STEPS, Sample, Slot, StopReason
from workers.wire import ChildSpec

__all__ = ["ChildProcess", "ChildSpec", "Exit", "StopReason", "child_environment"]

_ROOT = Path(__file__).parent.parent
_INSTALLED = _ROOT.name in ("site-packages", "dist-packages")
_LOOK_S = 0.002
CHATTER, CHATTER_PAUSE_S = 32, 0.005
"""So many events and checkpoints of one child are read at once, then none for so long, or ten times what it took."""
BUSY, BUSY_PAUSE_S = 8, 0.001
"""A sync child with so many tasks in hand is heard that often: being woken for each end costs more than the end."""
_FATAL = frozenset({signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL})
"""Those at which faulthandler writes where the process was."""

_KEPT_VARIABLES = frozenset({"TASKGATE_URL"})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended: by an exit code or by a signal."""

    code: int | None
    signal: int | None
    stack: str
    """What faulthandler wrote when it died of a fatal signal, else ""."""
    rss_peak_bytes: int | None
    """The most that it had in memory in its life; None where it is not known."""


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a child gets of the service's environment: the handlers' own variables, none of our secrets."""
    return {
        name: value for name, value in environ.items() if not name.startswith("TASKGATE_") or name in _KEPT_VARIABLES
    }


class ChildProcess:
    """A task belongs to the child from the moment it received the packet, and to the supervisor before that and after
    `Done`, `Refused` or a take-back. The process stays a zombie, and its id its own, until `reap`.
    """

    def __init__(
        self,
        spec: ChildSpec,
        *,
        on_message: "Callable[[ChildProcess, wire.Message], None]",
        on_exit: "Callable[[ChildProcess, Exit], None]",
    ) -> None:
        """Use `start`."""
        self.spec = spec
        self.ready = False
        self.exit: Exit | None = None
        self.garbage = ""
        """Why what it sent was no message; it was killed for it."""
        self.blocked = False
        """It was killed because its event loop stood still, and nobody was noted."""
        self.last_given = False
        """It was given a task after which it exits."""
        self.killed = False
        """We ended it: its death says nothing about what it ran."""
        self._on_message = on_message
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._last_seq = 0
        self._records: dict[int, int] = {}
        # The one free for longest is next: a thread that a task left behind may still be writing into the last one.
        self._free = deque(range(spec.slots))
        self._open = True
        with contextlib.ExitStack() as undo:
            self._socket, self._childs_socket = wire.pair()
            undo.callback(self._socket.close)
            undo.callback(self._childs_socket.close)
            self._slot = Slot.create(spec.slots)
            undo.callback(self._slot.close)
            self.dumps = Dumps(lambda: self._signal(STACK_SIGNAL))
            undo.callback(self.dumps.close)
            self._output = Output(
                owner=lambda: self._slot.words[RUNNING], take=lambda printed: self._on_message(self, printed)
            )
            undo.callback(self._output.close)
            self._process = self._spawn()
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.pid = self._process.pid
            self._pidfd = os.pidfd_open(self.pid)
            undo.callback(os.close, self._pidfd)
            self.memory = Memory(self.pid)
            undo.pop_all()
        self._output.started()
        self.dumps.started()
        self._loop.add_reader(self._socket, self._read)
        self._loop.add_reader(self._pidfd, self._died)

    @classmethod
    def start(
        cls,
        spec: ChildSpec,
        *,
        on_message: "Callable[[ChildProcess, wire.Message], None]",
        on_exit: "Callable[[ChildProcess, Exit], None]",
    ) -> "ChildProcess":
        """A new process, leader of a session and process group of its own.

        Call it from the main thread: the child dies with the thread that started it.

        Raises:
            OSError: no descriptors, no memory, no processes left; then nothing of it is left either.
        """
        return cls(spec, on_message=on_message, on_exit=on_exit)

    @property
    def outstanding(self) -> set[int]:
        """Handed over, and neither answered nor taken back."""
        return set(self._records)

    @property
    def handed(self) -> int:
        """How many tasks it was ever given."""
        return self._last_seq

    @property
    def load(self) -> int:
        """How many are outstanding."""
        return len(self._records)

    def hand_over(
        self, claimed: Claimed, *, deadline_ns: int, last: bool = False, trace: TraceContext | None = None
    ) -> int | None:
        """Send a task; returns its sequence, or None when there is no room, or no child that is ready.

        `last`: the child exits after it. `trace`: what its handler is part of; None: the same as its submission.
        """
        if not self._free or not self.ready or self.exit is not None or not self._open:
            return None
        seq, record = self._last_seq + 1, self._free[0]
        spec = claimed.spec
        task = wire.Task(
            seq=seq,
            record=record,
            id=spec.id,
            type=spec.type,
            number=claimed.attempt,
            payload=claimed.payload,
            checkpoint=claimed.checkpoint,
            metadata=b"" if spec.metadata is msgspec.UNSET else bytes(spec.metadata),
            timeout_s=spec.timeout_s,
            deadline_ns=deadline_ns,
            last=last,
            traceparent=spec.traceparent if trace is None else trace.parent,
            tracestate=spec.tracestate if trace is None else trace.state,
        )
        if not self._send(task):
            return None
        self._last_seq, self.last_given = seq, self.last_given or last
        self._records[seq] = self._free.popleft()
        return seq

    def take_back(self) -> list[int]:
        """Receive in the child's place what it has not received yet; it will never see these."""
        taken = []
        while self._open:
            try:
                order = wire.receive_order(self._childs_socket, wait=False)
            except BlockingIOError:
                break
            if isinstance(order, wire.Task):
                self._forget(order.seq)
                taken.append(order.seq)
        return taken

    def received(self) -> int:
        """Highest sequence that the child has received."""
        return self._slot.words[RECEIVED]

    def running(self) -> int:
        """Sync: the sequence running now, 0 when idle."""
        return self._slot.words[RUNNING]

    def noted(self) -> int:
        """Async: the sequence being stepped now, 0 for none."""
        return self._slot.words[NOTED]

    def steps(self) -> int:
        """Async: how many steps its tasks have made: a loop that somebody blocks makes none."""
        return self._slot.words[STEPS]

    def moment(self) -> tuple[int, int, int]:
        """The same before and after something: all the while it was in one task or, async, in one step of one."""
        return self.running(), self.noted(), self.steps()

    def sample(self) -> Sample:
        return self._slot.sample()

    def hear(self) -> None:
        """Take what it has said and printed now, not in its turn."""
        self._read()
        if self._open:
            self._output.drain()

    def soft_stop(self, seq: int, reason: StopReason) -> None:
        """Ask the handler of `seq` to end. What has not started is not run; what has ended is left alone."""
        record = self._records.get(seq)
        if record is not None and self.exit is None:
            self._slot.records[record].ask_stop(seq, reason)
            self._signal(signal.SIGUSR1)

    def finish(self) -> bool:
        """Ask the child to exit once its tasks are done; False: no room in the socket, try again."""
        return self._send(wire.Finish())

    def kill(self) -> None:
        """End the whole process group, whatever it does."""
        self.killed = self.killed or self.exit is None
        self._kill_group()

    def ask_stack(self, seq: int) -> bool:
        """Async: ask its event loop where that task is; False: no room in the socket, so it does not read."""
        return self._send(wire.AskStack(seq))

    def reap(self) -> resource.struct_rusage:
        """Let go of the process id and return what the process used. Only after `on_exit`, and after the guard has
        acknowledged that it forgot the group: until then the id must not become somebody else's.
        """
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return usage

    def close(self) -> None:
        """Free descriptors and memory. Idempotent."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self.memory.close()
            self._socket.close()
            self._childs_socket.close()
            self._slot.close()
            self.dumps.close()
            self._output.close()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        environ = child_environment()
        log_fd = os.dup(2)
        start = wire.Start(
            spec=self.spec,
            parent=os.getpid(),
            socket=self._childs_socket.fileno(),
            slot=self._slot.fd,
            stack=self.dumps.writer,
            log=log_fd,
            mark=self._output.mark.decode(),
            readers=tuple(self._output.readers),
            python_path=environ.get("PYTHONPATH"),
            root=None if _INSTALLED else str(_ROOT),
        )
        # The folder of this very code, and not the working directory (-P): a `workers` of the user's own must not be
        # taken for ours. The child puts both right before it loads handlers.
        if start.root is not None:
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, [start.root, start.python_path]))
        environ[orphans.MARK] = str(start.parent)
        stdout, stderr = self._output.writers
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "workers.child", msgspec.json.encode(start).decode()],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environ,
                pass_fds=(start.socket, start.slot, start.stack, start.log, *start.readers),
                start_new_session=True,
            )
        finally:
            os.close(log_fd)

    def _send(self, order: wire.Order) -> bool:
        try:
            wire.send(self._socket, order)
        except BlockingIOError:
            return False
        return True

    def _pause(self, seconds: float) -> None:
        """Hear nothing for so long."""
        self._loop.remove_reader(self._socket)
        self._loop.call_later(seconds, self._listen)

    def _listen(self) -> None:
        """Read again."""
        if self._open and self.exit is None:
            self._loop.add_reader(self._socket, self._read)

    def _read(self, *, all_of_it: bool = False) -> None:
        """Give on what the child has sent. One that talks without end is heard in turns, and so slows only itself."""
        chatter, began_s = 0, 0.0
        while self._open:
            if chatter == CHATTER and not all_of_it:
                self._pause(max(CHATTER_PAUSE_S, 10 * (time.thread_time() - began_s)))
                return
            try:
                message = wire.receive_message(self._socket)
            except BlockingIOError:
                if self.spec.kind == "sync" and len(self._records) >= BUSY and not all_of_it:
                    self._pause(BUSY_PAUSE_S)
                return
            except wire.Malformed as error:
                log.error("a child sent garbage; it is killed", pid=self.pid, error=str(error))
                self.garbage = self.garbage or str(error)
                self._kill_group()
                continue
            match message:
                case wire.Done(seq=seq) | wire.Refused(seq=seq):
                    if seq not in self._records:
                        continue
                    self._forget(seq)
                case wire.Ready():
                    self.ready = True
                case wire.Printed():
                    self._output.drain()
                case wire.Emitted() | wire.Checkpoint():
                    began_s = began_s or time.thread_time()
                    chatter += 1
                case None:
                    return
            self._on_message(self, message)

    def _died(self) -> None:
        """What it had sent before is read first, and wins; nothing of its group outlives it."""
        self._loop.remove_reader(self._pidfd)
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        exited = info.si_code == os.CLD_EXITED
        self._kill_group()
        self._read(all_of_it=True)
        self._loop.remove_reader(self._socket)
        self.exit = Exit(
            code=info.si_status if exited else None,
            signal=None if exited else info.si_status,
            stack=self.dumps.last_words() if info.si_status in _FATAL and not exited else "",
            rss_peak_bytes=zombie_peak_bytes(self.pid),
        )
        self._when_stopped(self.exit)

    def _when_stopped(self, how: Exit) -> None:
        """Nobody is told of an end before the last of the group has ended: a killed process takes a moment to die."""
        if orphans.group_lives(self.pid):
            self._loop.call_later(_LOOK_S, self._when_stopped, how)
        else:
            self._output.ended()
            self._on_exit(self, how)

    def _kill_group(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _forget(self, seq: int) -> None:
        self._free.append(self._records.pop(seq))

    def _signal(self, number: int) -> None:
        """To the child alone. Its id is still its own: the zombie is there until `reap`."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

"""What supervisor and child tell each other: one packet a message, over a SOCK_SEQPACKET pair."""

import array
import os
import socket
from typing import Literal, TypeVar

import msgspec

from taskgate.contract.models import TypeInfo
from taskgate.contract.stacks import Thread
from workers.slot import Progress

INLINE_BYTES = 64 * 1024
"""A message above it travels in a memfd, so that one task never fills the socket."""

LARGEST_BYTES = 256 * 1024 * 1024
"""Nothing honest is larger; a child that sends more is broken."""

_IN_MEMFD = b"m"
_ONE_FD = socket.CMSG_LEN(array.array("i").itemsize)
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_DONT_WAIT = int(socket.MSG_DONTWAIT)
"""Plain numbers: the arithmetic of enum flags costs more than the system call."""

T = TypeVar("T")
Kind = Literal["sync", "async"]


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is for."""

    kind: Kind
    handlers: tuple[str, ...]
    """Modules to load."""
    slots: int = 1
    """Tasks that may be handed over and unfinished; a sync child runs one of them at a time."""
    result_max_bytes: int = 1024 * 1024
    log_format: Literal["auto", "json", "ecs", "console"] = "auto"
    log_level: str = "info"
    alone: bool = False
    """Async, for one suspect at a time."""
    keys_hold: bool = True
    """As in taskgate.Attempt."""

    @property
    def pool(self) -> str:
        """The name of the pool that it is for."""
        return "alone" if self.alone else self.kind


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The one argument of `python -m workers.child`, as JSON."""

    spec: ChildSpec
    parent: int
    socket: int
    slot: int
    stack: int
    """Where faulthandler writes."""
    log: int
    """The service's log."""
    mark: str
    """Begins every frame in its output."""
    readers: tuple[int, ...]
    """The supervisor's ends of its output."""
    python_path: str | None
    """PYTHONPATH as handlers, and what they start, are to see it."""
    root: str | None
    """The folder of our code, when it had to be put in front of it."""


class Task(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="task"):
    """One attempt to run, from the supervisor."""

    seq: int
    """The task's number within this child, from 1."""
    record: int
    """Index of its record in the slot."""
    id: str
    type: str
    number: int
    """The attempt, from 1."""
    payload: bytes
    checkpoint: bytes
    metadata: bytes
    timeout_s: float
    deadline_ns: int
    """Boot clock: past it the child must not start the task."""
    last: bool
    """The child exits after it."""
    traceparent: str = ""
    tracestate: str = ""


class Finish(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="finish"):
    """From the supervisor: exit once what was handed over is done."""


class AskStack(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="ask_stack"):
    """From the supervisor, to an async child: tell where that task is now."""

    seq: int


class HandlerInfo(msgspec.Struct, frozen=True, array_like=True):
    """A handler as its child describes it; the supervisor itself never imports one."""

    type: str
    info: bytes
    """JSON of `TypeInfo`."""
    retry_base_s: float
    retry_max_s: float
    fresh_process: bool

    def type_info(self) -> TypeInfo:
        return msgspec.json.decode(self.info, type=TypeInfo)


class Ready(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="ready"):
    handlers: list[HandlerInfo]


class StartFailed(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="start_failed"):
    """The handlers did not load; the child exits."""

    error: str
    """Text with the traceback."""


class Submitted(msgspec.Struct, frozen=True, array_like=True):
    """A task that the handler submits together with its end. None: as its type says."""

    id: str
    type: str
    payload: bytes
    queue: str | None
    priority: int
    delay_s: float
    deadline_s: float | None
    timeout_s: float | None
    max_attempts: int | None
    metadata: bytes
    """JSON object, or empty."""
    unique_key: str | None
    on_conflict: str
    concurrency_key: str | None


class Done(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag_field="kind", tag="done"):
    """The end of an attempt. What the handler said (a result, Retry, Fail) wins over a stop that was asked for."""

    seq: int
    outcome: str
    """`succeeded`, `failed`, `retry`, or the stop that ended it: `canceled`, `timeout`, `drained`."""
    result: bytes = b""
    """JSON; of `succeeded` only."""
    error: bytes = b""
    """JSON object kind, message, type, traceback, …; empty when there is none."""
    may_retry: bool = False
    """Of `failed`: whether another attempt may do better."""
    retry_after_s: float | None = None
    """Of `retry`: what the handler asked for; None is the type's backoff."""
    progress: Progress | None = None
    """The last one: the task's record in the slot is used again at once."""
    submitted: list[Submitted] = []
    run_ns: int = 0
    cpu_ns: int | None = None
    """CPU time of the child meanwhile; None where several tasks share it."""
    gc_ns: int = 0
    emitted: int = 0
    """The `n` of its last event."""
    left_running: bool = False
    """Threads of a stopped handler run on, or something goes on printing: the child receives nothing more, and is to be
    killed before this is told."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="refused"):
    """Received past its lease deadline; not run."""

    seq: int


class Emitted(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="emitted"):
    """An event of the handler's own."""

    seq: int
    n: int
    """Of this attempt, from 1: those that are missing were lost."""
    name: str
    """"": one was lost just now, this one."""
    data: bytes
    """JSON object."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="checkpoint"):
    """From here the next attempt resumes."""

    seq: int
    data: bytes
    """JSON."""


class Unclean(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="unclean"):
    """Tasks left something behind."""

    kept: list[str]
    """What cannot be taken back; then the child works on until it is replaced."""
    undone: list[str]
    """What was taken back."""
    task_id: str
    """The last one that ran: it, or one shortly before."""
    task_type: str


class TaskStack(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="task_stack"):
    """Where an async task is, asked for or at its timeout."""

    seq: int
    threads: list[Thread]
    """None of them: it has ended."""
    timed_out: bool = False
    """It is about to be stopped at its timeout: this is what its error shows."""


class Printed(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag="printed"):
    """Output of a task, as the supervisor reads it from the child's pipes. From the child itself: read them now."""

    seq: int
    """0: of no task."""
    stream: str
    """`stdout`, `stderr`, or `log` for Python's loggers."""
    data: bytes
    dropped: int = 0
    """Bytes that found no room in the pipe."""


Message = Printed | Ready | StartFailed | Done | Refused | Emitted | Checkpoint | Unclean | TaskStack
Order = Task | Finish | AskStack

_encode = msgspec.msgpack.Encoder().encode
_message = msgspec.msgpack.Decoder(Message)
_order = msgspec.msgpack.Decoder(Order)


class Malformed(Exception):
    """The other side sent what is no message."""


def pair() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end (non-blocking) and the child's (blocking)."""
    ours, childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, childs


def send(sock: socket.socket, message: Message | Order) -> None:
    """Raises:
    BlockingIOError: the socket is non-blocking and full.
    """
    body = _encode(message)
    if len(body) <= INLINE_BYTES:
        sock.send(body)
        return
    fd = os.memfd_create("taskgate-message", os.MFD_CLOEXEC)
    try:
        view = memoryview(body)
        while view:
            view = view[os.write(fd, view) :]
        socket.send_fds(sock, [_IN_MEMFD], [fd])
    finally:
        os.close(fd)


def receive_message(sock: socket.socket) -> Message | None:
    """The next message of the child, None at its end.

    Raises:
        BlockingIOError: there is none now.
        Malformed: it is none of ours.
    """
    body = _receive(sock, 0)
    return None if body is None else _decoded(_message, body)


def receive_order(sock: socket.socket, *, wait: bool) -> Order | None:
    """The next order, None when the supervisor is gone; used by the child, and by the supervisor to take back.

    Raises:
        BlockingIOError: there is none now, and `wait` is False.
    """
    # The flag, not the socket's mode: that one is shared by both processes.
    body = _receive(sock, 0 if wait else _DONT_WAIT)
    return None if body is None else _decoded(_order, body)


def _receive(sock: socket.socket, flags: int) -> bytes | None:
    # socket.recv_fds would do, but drops its flags.
    body, ancillary, message_flags, _ = sock.recvmsg(INLINE_BYTES, _ONE_FD, flags | _CLOSE_ON_EXEC)
    if not ancillary and not message_flags & _CUT:
        return body or None
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    try:
        if message_flags & _CUT or len(fds) != 1:
            raise Malformed("a packet was cut")
        size = os.fstat(fds[0]).st_size
        if size > LARGEST_BYTES:
            raise Malformed(f"a message of {size} bytes")
        return os.pread(fds[0], size, 0)
    finally:
        for fd in fds:
            os.close(fd)


def _decoded(decoder: "msgspec.msgpack.Decoder[T]", body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise Malformed(str(error)) from None

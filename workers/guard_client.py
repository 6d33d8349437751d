"""The supervisor's side of the guard: keeps one running, and knows which groups it has acknowledged."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import structlog

from workers import guard
from workers.guard import ADD, DEADLINE, DONE, MESSAGE, PAUSED, REMOVE, SYNC

_ACK_S = 1.0
_BACKOFF_FIRST_S = 0.05
_BACKOFF_LAST_S = 5.0

log = structlog.get_logger()


class GuardClient:
    """`alive` means: a guard runs and knows the deadline and every group. Claim only while it is.

    A guard that dies, or does not answer within a second and is killed for it, is replaced; the new one is told all.
    """

    def __init__(self, *, pause_s: float, on_change: Callable[[bool], None] | None = None) -> None:
        self._pause_ns = int(pause_s * 1e9)
        self._on_change = on_change
        self._groups: set[int] = set()
        self._deadline_ns = 0
        self._connection: Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._up = asyncio.Event()

    @property
    def alive(self) -> bool:
        return self._up.is_set()

    @property
    def paused(self) -> bool:
        """The guard has stopped the groups."""
        return self._connection is not None and self._connection.paused

    @property
    def pid(self) -> int | None:
        return self._connection.pid if self._connection else None

    async def start(self) -> None:
        """Returns when the first guard has answered; from then on one is kept running."""
        self._keeper = asyncio.create_task(self._keep())
        await self._up.wait()

    async def add(self, group: int) -> None:
        """Returns when a guard knows `group`; until then nothing may run in it."""
        self._groups.add(group)
        while group in self._groups:
            if self._connection is None or not self.alive:
                # The one that comes up was told of every group there was, so of this one too.
                await self._up.wait()
                return
            if await self._connection.ask(ADD, group):
                return

    async def remove(self, group: int) -> None:
        """Returns when no guard will ever signal `group` again: acknowledged, or the guard that knew it is dead."""
        self._groups.discard(group)
        if self._connection is not None:
            await self._connection.ask(REMOVE, group)

    def deadline(self, boot_ns: int) -> None:
        """Up to `boot_ns` the lease is sure: then the groups stop, until a later one comes or `pause_s` is over.

        Every beat comes through here, so a guard that hangs is found by its silence and replaced.
        """
        self._deadline_ns = boot_ns
        if self._connection is not None:
            self._connection.ask(DEADLINE, boot_ns)

    async def close(self) -> None:
        """Let the guard go. Groups that it still knows are killed."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None

    async def _keep(self) -> None:
        backoff_s = _BACKOFF_FIRST_S
        while True:
            try:
                self._connection = Connection(pause_ns=self._pause_ns, on_death=self._down)
            except OSError as error:
                log.error("the guard cannot be started", error=str(error))
            else:
                if await self._serve(self._connection):
                    backoff_s = _BACKOFF_FIRST_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_LAST_S)

    async def _serve(self, connection: "Connection") -> bool:
        """Until the guard is dead; whether it ever was up."""
        try:
            was_up = await self._tell_all(connection)
            if was_up:
                self._up.set()
                self._changed()
            await connection.died.wait()
        except asyncio.CancelledError:
            connection.hang_up()
            await connection.died.wait()
            raise
        log.error("the guard died; no claims until there is a new one", pid=connection.pid)
        return was_up

    async def _tell_all(self, connection: "Connection") -> bool:
        """Groups come and go meanwhile: until a round finds nothing new. False: it died."""
        told: set[int] = set()
        while True:
            groups = set(self._groups)
            # The deadline first: what is added past it is stopped at once.
            connection.tell(DEADLINE, self._deadline_ns)
            for group in groups - told:
                connection.tell(ADD, group)
            if not await connection.ask(SYNC, 0):
                return False
            told = groups
            if not self._groups - told:
                return True

    def _down(self) -> None:
        self._connection = None
        if self.alive:
            self._up.clear()
            self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change(self.alive)


class Connection:
    """One guard process."""

    def __init__(self, *, pause_ns: int, on_death: Callable[[], None]) -> None:
        self.paused = False
        self.died = asyncio.Event()
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._asked: dict[int, asyncio.Future[bool]] = {}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), str(pause_ns)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._socket, self._read)
        self._loop.add_reader(self._pidfd, self._bury)

    def tell(self, operation: bytes, value: int, number: int = 0) -> None:
        try:
            self._socket.send(MESSAGE.pack(operation, value, number))
        except OSError:
            # Dead, or it has not read for hundreds of messages: no guard either way.
            self._kill()

    def ask(self, operation: bytes, value: int) -> "asyncio.Future[bool]":
        """True when it has answered, False when it is dead, be it for not answering."""
        answer: asyncio.Future[bool] = self._loop.create_future()
        if self.died.is_set():
            answer.set_result(False)
            return answer
        self._number += 1
        self._asked[self._number] = answer
        self.tell(operation, value, self._number)
        self._loop.call_later(_ACK_S, self._expect, answer)
        return answer

    def hang_up(self) -> None:
        """It kills what it knows, and exits; one that hangs is not waited for."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._loop.call_later(_ACK_S, self._kill)

    def _read(self) -> None:
        while not self.died.is_set():
            try:
                message = self._socket.recv(MESSAGE.size)
            except OSError:
                return
            if len(message) != MESSAGE.size:
                self._loop.remove_reader(self._socket)
                return
            operation, _, number = MESSAGE.unpack(message)
            if operation == DONE:
                answer = self._asked.pop(number, None)
                if answer is not None and not answer.done():
                    answer.set_result(True)
            else:
                self.paused = operation == PAUSED

    def _expect(self, answer: "asyncio.Future[bool]") -> None:
        self._read()  # a supervisor that was frozen looks at its timers before its sockets
        if not answer.done():
            log.error("the guard does not answer; it is replaced", pid=self.pid)
            self._kill()

    def _kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def _bury(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        self.died.set()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(False)
        self._on_death()

"""The side of the guard that lives in `up`: starts it, gives it every process to end, logs what it tells."""

import asyncio
import contextlib
import json
import socket
import sys
from pathlib import Path

import structlog

from taskgate.embedded import Embedded
from taskgate.up.process import Process

_GUARD = Path(__file__).with_name("guard.py")
_BACKOFF_S = 0.5
_MESSAGE_BYTES = 64 * 1024

logger = structlog.get_logger()


class Guarded:
    """One guard after the other, until `close`; each knows every ward that lives."""

    def __init__(self, valkey: Embedded | None, *, grace_s: float) -> None:
        self._valkey = valkey
        self._command = valkey.command() if valkey else []
        self._grace_s = grace_s
        self._wards: dict[int, Process] = {}
        self._socket: socket.socket | None = None
        self._guard: Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.valkey_started = False
        """Ours, that is: for a moment one of an earlier run may answer."""
        self.valkey_exits = 0

    def start(self) -> None:
        self._launch()
        self._keeping = asyncio.create_task(self._keep())

    def adopt(self, ward: Process) -> None:
        """From now on it ends when `up` does."""
        self._wards = {pid: one for pid, one in self._wards.items() if one.alive} | {ward.pid: ward}
        self._hand_over(ward)

    async def close(self) -> int:
        """Let the guard end what is left, Valkey last; its exit code."""
        if self._keeping:
            self._keeping.cancel()
        self._disconnect()
        return await self._guard.wait() if self._guard else 0

    def _launch(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        folder = [str(self._valkey.folder)] if self._valkey else []
        self._guard = Process(
            [
                *(sys.executable, "-I", "-S", str(_GUARD)),
                *(str(its.fileno()), str(self._grace_s), *folder, *self._command),
            ],
            pass_fds=[its.fileno()],
        )
        its.close()
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._listen)
        for ward in self._wards.values():
            self._hand_over(ward)

    async def _keep(self) -> None:
        while self._guard:
            code = await self._guard.wait()
            logger.error("guard died", pid=self._guard.pid, exit_code=code, again_in_s=_BACKOFF_S)
            self._disconnect()
            await asyncio.sleep(_BACKOFF_S)
            try:
                self._launch()
            except OSError as error:
                logger.error("guard not started", error=str(error))

    def _hand_over(self, ward: Process) -> None:
        if self._socket and ward.alive:
            with contextlib.suppress(OSError):  # it is dead: its successor gets them all
                socket.send_fds(self._socket, [str(ward.pid).encode()], [ward.pidfd])

    def _disconnect(self) -> None:
        if self._socket:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _listen(self) -> None:
        assert self._socket is not None
        try:
            packet = self._socket.recv(_MESSAGE_BYTES)
        except OSError:
            packet = b""
        if not packet:
            self._disconnect()
            return
        news = json.loads(packet)
        event = news.pop("event")
        self.valkey_started = event == "valkey started"
        if "again_in_s" not in news:
            logger.info(event, **news)
            return
        self.valkey_exits += 1
        assert self._valkey is not None
        logger.error(event, **news, last_words=self._valkey.last_words())

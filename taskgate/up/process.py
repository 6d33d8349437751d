"""One process that `up` starts: in a session of its own, tethered to `up`, watched through a pidfd."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TETHER = Path(__file__).with_name("tether.py")


class Process:
    """A started child. Its group is gone, and it is reaped, when `wait` returns."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        tether: signal.Signals | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """`tether`: the signal it gets when `up` dies; None: none, it looks after itself."""
        prefix: list[str] = []
        if tether is not None:
            prefix = [sys.executable, "-I", "-S", str(_TETHER), str(int(tether)), str(os.getpid())]
        self._popen = subprocess.Popen(
            [*prefix, *command],
            env=env,
            stdin=subprocess.DEVNULL,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        self._exited = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self.pidfd, self._bury)

    @property
    def alive(self) -> bool:
        return not self._exited.done()

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        if self.alive:
            os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code, negative for a signal."""
        return await asyncio.shield(self._exited)

    def _bury(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # before it is reaped: until then the number is its own
        os.close(self.pidfd)
        self._exited.set_result(self._popen.wait())

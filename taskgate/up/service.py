"""A service of `up`: one process, kept running until it is told to stop."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping

import structlog

from taskgate.up.guarded import Guarded
from taskgate.up.process import Process

_BACKOFF_S = (0.2, 10.0)
_STEADY_S = 10.0
_PATIENCE_S = 2.0
"""How long `renew` lets running tasks go on before they are handed back."""

logger = structlog.get_logger()


class Service:
    """Started again with backoff, for ever: what is wrong today (a full disk, a broken module) is mended tomorrow."""

    def __init__(
        self,
        name: str,
        command: Callable[[], list[str]],
        *,
        env: Callable[[], Mapping[str, str]],
        guard: Guarded,
    ) -> None:
        self.name = name
        self._command = command
        self._env = env
        self._guard = guard
        self._process: Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False
        self._renewing = False
        self._again = asyncio.Event()
        self.exit_code: int | None = None

    def start(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    @property
    def started(self) -> bool:
        return self._keeping is not None

    def stop(self) -> None:
        """Ask it to end; a second call hurries it."""
        self._stopping = True
        if self._process and self._process.alive:
            self._process.send(signal.SIGTERM)
        elif self._keeping:
            self.exit_code = None
            self._keeping.cancel()

    def kill(self) -> None:
        if self._process:
            self._process.kill()

    async def ended(self) -> None:
        if self._keeping:
            await asyncio.wait([self._keeping])

    async def renew(self, *, grace_s: float) -> None:
        """Replace the process: what runs gets a moment to finish, then it is handed back."""
        process = self._process
        if process is None or not process.alive:
            self._again.set()
            return
        self._renewing = True
        for patience_s in (_PATIENCE_S, grace_s):
            process.send(signal.SIGTERM)
            if await _exits(process, within_s=patience_s):
                return
        process.kill()

    async def _keep(self) -> None:
        delay_s = _BACKOFF_S[0]
        while True:
            started = time.monotonic()
            self.exit_code = await self._live()
            if self._stopping:
                return
            if self._renewing:
                self._renewing = False
                continue
            delay_s = _BACKOFF_S[0] if time.monotonic() - started > _STEADY_S else delay_s
            logger.error("service exited", service=self.name, exit_code=self.exit_code, again_in_s=delay_s)
            await self._pause(delay_s)
            delay_s = min(_BACKOFF_S[1], delay_s * 2)

    async def _pause(self, delay_s: float) -> None:
        """Before the next start; `renew` ends it."""
        self._again.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._again.wait(), delay_s)

    async def _live(self) -> int | None:
        """Its exit code; None: it could not be started."""
        try:
            self._process = Process(self._command(), env=self._env(), tether=signal.SIGTERM)
        except OSError as error:
            logger.error("service not started", service=self.name, error=str(error))
            return None
        self._guard.adopt(self._process)
        return await self._process.wait()


async def _exits(process: Process, *, within_s: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        return False
    return True

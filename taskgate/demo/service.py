"""The service that the demo works on: `taskgate up` with data, port and environment of its own."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import taskgate
from taskgate.demo.api import Api
from taskgate.listening import free_port

QUEUE_LIMIT = 25
_ROOT = Path(taskgate.__file__).parents[1]
GRACE_S = 10
_START_S = 45.0
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""All that is taken over from the caller's environment: no stray TASKGATE_*, PYTHON* or proxy variable."""


class NotStarted(Exception):
    """The service never became ready; the text is the end of its log."""


class Service:
    """One `taskgate up` and all processes below it, which carry a mark in their environment."""

    def __init__(self, folder: Path, *, files: Path) -> None:
        self.log = folder / "service.log"
        self.url = f"http://127.0.0.1:{free_port()}"
        self._mark = f"DEMO_RUN={secrets.token_hex(8)}"
        self._folder = folder
        self._environment = self._make_environment(files)
        self._up: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns when the service says that it is ready.

        Raises:
            NotStarted: it ended, or was not ready in time.
        """
        tether = _ROOT / "taskgate" / "up" / "tether.py"
        command = [sys.executable, str(tether), str(int(signal.SIGTERM)), str(os.getpid())]
        with self.log.open("wb") as log:
            self._up = await asyncio.create_subprocess_exec(
                *command,
                *(sys.executable, "-m", "taskgate", "up"),
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C is for the demo, which then stops it in order
            )
        deadline = time.monotonic() + _START_S
        async with Api(self.url) as api:
            while not await api.ready():
                if self._up.returncode is not None or time.monotonic() > deadline:
                    raise NotStarted("\n".join(self.log.read_text(errors="replace").splitlines()[-15:]))
                await asyncio.sleep(0.05)

    async def stop(self) -> int | None:
        """Ends it in order, or else by force; its exit code, None when it was never started."""
        if self._up is None:
            return None
        self.hurry()
        try:
            async with asyncio.timeout(GRACE_S + 10):
                return await self._up.wait()
        except TimeoutError:
            self._up.kill()  # its guard ends the rest
            return await self._up.wait()

    def hurry(self) -> None:
        """Asks it to stop; asked again, it stops at once."""
        if self._up is not None and self._up.returncode is None:
            self._up.terminate()

    async def left_over(self, *, within_s: float = 5.0) -> list[int]:
        """Ids of its processes that still run after that time; they are killed."""
        deadline = time.monotonic() + within_s
        while pids := self._processes():
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def _processes(self) -> list[int]:
        mark, found = self._mark.encode(), []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
                if process.name.isdecimal() and mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found

    def _make_environment(self, files: Path) -> dict[str, str]:
        name, mark = self._mark.split("=")
        return {key: os.environ[key] for key in _KEPT if key in os.environ} | {
            name: mark,
            "DEMO_FILES": str(files),
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
            "TASKGATE_DATA_DIR": str(self._folder / "data"),
            "TASKGATE_PORT": self.url.rpartition(":")[2],
            "TASKGATE_WORKER_PROCESSES": "4",
            "TASKGATE_QUEUES": "default,burst",
            "TASKGATE_QUEUE_LIMIT_TASKS": str(QUEUE_LIMIT),
            "TASKGATE_LEASE_S": "3",  # supervisors say every second what their children run
            "TASKGATE_GRACE_S": str(GRACE_S),
            "TASKGATE_LOG_FORMAT": "json",
        }

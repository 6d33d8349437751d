"""`taskgate up` itself: starts Valkey, gateway and workers, keeps them running, and stops them in order."""

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from taskgate.contract import logs
from taskgate.doctor import look_at_redis
from taskgate.embedded import Embedded, EmbeddedError
from taskgate.settings import Settings
from taskgate.up import reload as reloading
from taskgate.up import terminal
from taskgate.up.address import AddressError, check_free, readiness, web_host
from taskgate.up.banner import banner
from taskgate.up.environment import environment, without_settings
from taskgate.up.guarded import Guarded
from taskgate.up.service import Service

_NOT_READY_NOTICE_S = 10.0
_POLL_S = 0.1
_ASKED = (0, None, -signal.SIGTERM)
"""Exit codes of a service that was stopped: by itself, while it was away, and while it was still starting."""

logger = structlog.get_logger()


class UpError(Exception):
    """It cannot start: one line that says why and what to do."""


def run(settings: Settings, *, reload: bool = False) -> int:
    """Run until stopped.

    0: stopped as asked; 1: could not start, or something had to be killed at the end; 2: an address is taken.
    """
    logs.configure(settings.log_format, settings.log_level)
    if settings.redis_url:
        look_at_redis(settings)  # the services would refuse it again and again
    try:
        return asyncio.run(Up(settings, reload=reload).run())
    except (UpError, AddressError, EmbeddedError) as error:
        print(f"taskgate up: {error}", file=sys.stderr)
        return 2 if isinstance(error, AddressError) else 1


class Up:
    """Valkey outlives the services, and the guard outlives all: whatever happens to `up`, nothing is left behind."""

    def __init__(self, settings: Settings, *, reload: bool) -> None:
        self._settings = settings
        self._reload = reload
        self._valkey = None if settings.redis_url else Embedded(settings.data_dir)
        # The last part of the grace belongs to Valkey, which stops when nobody needs it any more.
        self._reserve_s = min(2.0, settings.grace_s / 5)
        self._services_grace_s = max(0.1, settings.grace_s - self._reserve_s)
        self._guard = Guarded(self._valkey, grace_s=settings.grace_s)
        self._port = settings.port
        self._port_file: Path | None = None
        self._gateway = self._service("gateway")
        self._worker = self._service("worker")
        self._signals = 0
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal.

        Raises:
            UpError, AddressError, EmbeddedError: it cannot start; what had been started is stopped.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN or number is not signal.SIGHUP:  # nohup
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        serving = asyncio.create_task(self._serve())
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        asked.cancel()
        (outcome, _) = await asyncio.gather(serving, asked, return_exceptions=True)
        clean = await self._end()
        if isinstance(outcome, Exception):
            raise outcome
        logger.info("stopped", outcome="clean" if clean else "forced")
        return 0 if clean else 1

    def _service(self, command: str) -> Service:
        return Service(
            command,
            lambda: [sys.executable, "-P", "-m", "taskgate", command, *self._options(command)],
            env=self._environment,
            guard=self._guard,
        )

    def _options(self, command: str) -> list[str]:
        return ["--port-file", str(self._port_file)] if command == "gateway" and self._port_file else []

    def _environment(self) -> dict[str, str]:
        changed: dict[str, Any] = {"grace_s": self._services_grace_s, "port": self._port}
        if self._valkey:
            changed["redis_url"] = self._valkey.url
        return environment(self._settings, **changed)

    async def _serve(self) -> None:
        if self._valkey:
            self._valkey.open()
        check_free(self._settings.host, self._settings.port)
        if port := self._settings.worker_health_port:
            check_free(self._settings.host, port, setting="TASKGATE_WORKER_HEALTH_PORT")
        self._guard.start()
        await (self._serve_and_renew() if self._reload else self._serve_as_it_is())

    async def _serve_as_it_is(self) -> None:
        await self._bring_up()
        if not self._worker.started:
            raise UpError(f"{' or '.join(self._settings.handlers)} cannot be loaded: the reason is above")
        await self._announce()
        await self._asked.wait()

    async def _serve_and_renew(self) -> None:
        # A file that is written while everything starts is a change too.
        async with reloading.watching(self._settings.handlers) as changes:
            await self._bring_up()
            if not self._worker.started:
                terminal.say("taskgate up: no workers yet; they start as soon as the file above is mended")
            announcing = asyncio.create_task(self._announce())
            try:
                await self._renew_workers(changes)
            finally:
                announcing.cancel()

    async def _bring_up(self) -> None:
        """Start all; not the workers if their handlers cannot be loaded."""
        loading = asyncio.create_task(self._loads())
        try:
            if self._valkey:
                await self._valkey_answers(self._valkey)
            self._start_gateway()
            if await loading:
                self._worker.start()
        finally:
            loading.cancel()

    async def _loads(self) -> bool:
        return await reloading.loads(self._settings.handlers, env=without_settings())

    async def _valkey_answers(self, valkey: Embedded) -> None:
        """A long file may take its time to load; a server that exits before its first answer never will."""
        while not (self._guard.valkey_started and valkey.answers()):
            if self._guard.valkey_exits:
                raise UpError(f"Valkey does not start; the end of {valkey.folder}/valkey.log:\n{valkey.last_words()}")
            await asyncio.sleep(_POLL_S / 5)

    def _start_gateway(self) -> None:
        if self._port == 0:
            folder = self._valkey.folder if self._valkey else _temporary_folder()
            self._port_file = folder / "gateway.port"
            self._port_file.unlink(missing_ok=True)
        self._gateway.start()

    async def _announce(self) -> None:
        started = time.monotonic()
        noticed = False
        while True:
            self._learn_port()
            status, body = await readiness(web_host(self._settings.host), self._port) if self._port else (0, b"")
            if status == 200:
                terminal.say(banner(self._settings, self._port))
                return
            if not noticed and time.monotonic() - started > _NOT_READY_NOTICE_S:
                noticed = True
                terminal.say(
                    f"taskgate up: not ready yet: {body.decode(errors='replace') or 'the gateway does not answer'}"
                )
            await asyncio.sleep(_POLL_S)

    def _learn_port(self) -> None:
        """A gateway that is started again must come back on the port that clients know."""
        if self._port_file and self._port == 0:
            with contextlib.suppress(OSError, ValueError):
                self._port = int(self._port_file.read_text())

    async def _renew_workers(self, changes: reloading.Changes) -> None:
        while True:
            names = ", ".join(str(path) for path in (await changes.get())[:3])
            if not await self._loads():
                terminal.say(f"taskgate up: {names} changed, but does not load (above): the workers stay as they are")
                continue
            terminal.say(f"taskgate up: {names} changed: starting the workers anew")
            if self._worker.started:
                await self._worker.renew(grace_s=self._services_grace_s)
            else:
                self._worker.start()

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        self._asked.set()
        if number is signal.SIGHUP:
            terminal.leave()
        if self._signals == 1:
            terminal.say(f"taskgate up: stopping (at most {self._settings.grace_s:g} s); once more to hurry")
        else:
            self._hurried.set()

    async def _end(self) -> bool:
        """Whether all ended by itself: gateway and workers together, Valkey when both are gone."""
        services = (self._gateway, self._worker)
        for service in services:
            service.stop()
        hurrying = asyncio.create_task(self._hurry())
        ended = asyncio.gather(*(service.ended() for service in services))
        done, _ = await asyncio.wait([ended], timeout=self._services_grace_s + self._reserve_s / 2)
        for service in services:
            service.kill()
        await ended
        hurrying.cancel()
        guard_code = await self._guard.close()
        if self._valkey:
            self._valkey.close()
        elif self._port_file:
            shutil.rmtree(self._port_file.parent, ignore_errors=True)
        return bool(done) and guard_code == 0 and all(service.exit_code in _ASKED for service in services)

    async def _hurry(self) -> None:
        """Again and again: a signal that arrives while its like is pending is lost."""
        await self._hurried.wait()
        while True:
            for service in (self._gateway, self._worker):
                service.stop()
            await asyncio.sleep(_POLL_S)


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="taskgate-"))
    except OSError as error:
        raise UpError(f"TASKGATE_PORT=0 needs a temporary folder: {error}") from None

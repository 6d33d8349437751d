"""Entry points of the gateway: `app.main:app` for any ASGI server, `run` for our own."""

import contextlib
import functools
import multiprocessing
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import structlog
import uvicorn
from uvicorn.supervisors import Multiprocess

from app.api import build
from app.door import Door
from app.gateway import Gateway
from app.protocol import Connection
from app.reply import PROTECTION
from app.siblings import Siblings
from taskgate import listening, tracing
from taskgate import settings as environment
from taskgate.contract import logs
from taskgate.contract.connection import connect
from taskgate.doctor import look_at_redis
from taskgate.platform import die_with, raise_open_files_limit
from taskgate.settings import Settings, SettingsError

logger = structlog.get_logger()

BACKLOG = 2048
DRAIN_MAX_S = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HUNG_S = 30
"""One of several processes that says nothing for so long is replaced: on a busy machine even a start takes a while."""
SILENT_PEER_MS = 15_000
"""What was sent must be acknowledged by then: a client that has vanished is noticed within two pings of its stream."""


def create(settings: Settings, folder: Path | None = None) -> Door:
    """One gateway process' application. `folder`: where several processes leave each other what they have counted."""
    if (parent := multiprocessing.parent_process()) is not None:
        die_with(cast(int, parent.pid), signal.SIGTERM)  # one of several: nobody would restart, stop or count it
    logs.configure(settings.log_format, settings.log_level)
    siblings = None if folder is None else Siblings(folder)
    gateway = Gateway(settings, connect(settings, "gateway"), siblings, traces=tracing.start("gateway"))
    return Door(gateway, build(gateway))


def __getattr__(name: str) -> Door:
    """`app`, configured by the environment, made when a server asks for it and not by importing this module.

    Raises:
        SettingsError: a setting does not fit.
    """
    if name != "app":
        raise AttributeError(name)
    return create(environment.load())


def run(settings: Settings, *, port_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; returns after a clean stop.

    `port_file`: where to write the chosen port once connections are accepted, for whoever asked for port 0.
    """
    logs.configure(settings.log_format, settings.log_level)
    raise_open_files_limit()
    stop = _Stop()
    with listen(settings.host, settings.port) as listener, _folder(settings.gateway_processes) as folder:
        look_at_redis(settings)
        config = uvicorn.Config(
            functools.partial(create, settings, folder),
            factory=True,
            loop="uvloop",
            http=Connection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[(name.decode(), value.decode()) for name, value in PROTECTION],
            proxy_headers=False,
            workers=settings.gateway_processes,
            timeout_worker_healthcheck=HUNG_S,
            backlog=BACKLOG,
            timeout_graceful_shutdown=max(1, round(min(DRAIN_MAX_S, settings.grace_s / 2))),
        )
        if port_file is not None:
            _write(port_file, f"{listener.getsockname()[1]}\n")
        logger.info(
            "gateway listens", url=listening.url_of(listener), pid=os.getpid(), processes=settings.gateway_processes
        )
        if settings.api_key is None:
            logger.warning("no key is asked for: whoever reaches the address may do everything", address=settings.host)
        if settings.gateway_processes == 1:
            server = stop.server = uvicorn.Server(config)
            if stop.asked:
                server.should_exit = True
            server.run(sockets=[listener])
        else:
            several = Multiprocess(config, sockets=[listener])  # it takes the signals
            if not stop.asked:
                several.run()
        stop.done()
        logger.info("gateway stopped", pid=os.getpid())


@contextlib.contextmanager
def _folder(processes: int) -> Iterator[Path | None]:
    """For as long as several processes run. Raises SettingsError where none can be made."""
    if processes == 1:
        yield None
        return
    try:
        made = tempfile.TemporaryDirectory(prefix="taskgate-gateway-", ignore_cleanup_errors=True)
    except OSError as error:
        raise SettingsError(f"TASKGATE_GATEWAY_PROCESSES: {processes} need a temporary folder: {error}") from None
    with made as folder:
        yield Path(folder)


class _Stop:
    """SIGTERM and SIGINT before uvicorn takes them, and after: once it has stopped, it raises again what stopped it.

    They only leave a mark: an exception may come up where it is swallowed, in a finalizer, and nothing stops.
    """

    def __init__(self) -> None:
        self.asked = False
        self.server: uvicorn.Server | None = None
        for number in _SIGNALS:
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True
        if self.server is not None:
            self.server.should_exit = True

    def done(self) -> None:
        """Nothing is left to stop: another signal must not turn a clean end into a killed one."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that already queues connections.

    Raises:
        SettingsError: the address is taken, or none of this machine's.
    """
    listener = listening.listen(host, port, variables="TASKGATE_HOST, TASKGATE_PORT", backlog=BACKLOG)
    # Its connections inherit it: a peer that vanished, or stopped reading, is given up by the kernel.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_PEER_MS)
    listener.set_inheritable(True)
    return listener


def _write(path: Path, text: str) -> None:
    """Whole or not at all: who waits for the file may read it at once."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)

"""Sockets that wait for connections, and how their addresses are written."""

import contextlib
import os
import random
import socket

from taskgate.settings import SettingsError


def listen(host: str, port: int, *, variables: str, backlog: int | None = None) -> socket.socket:
    """One that already queues connections.

    Raises:
        SettingsError: the address, which stands in `variables`, is taken, or none of this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        # create_server adds the address to the text of an error of the system; that stands here already.
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise SettingsError(f"{variables}: {host}:{port}: {why}") from None


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def free_port() -> int:
    """One of 127.0.0.1, below those that the kernel gives to connections: it is free still when it is used."""
    while True:
        port = random.randrange(10_000, 20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port

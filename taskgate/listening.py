"""Sockets that wait for connections, and how their addresses are written."""

import os
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

"""Addresses of the services: whether one is free, where to connect, whether who answers there is ready."""

import asyncio
import contextlib
import errno
import socket

_TIMEOUT_S = 2.0
_ANY = "0.0.0.0"  # nosec B104 # seen, not listened on
_WILDCARDS = {_ANY: "127.0.0.1", "::": "::1"}


class AddressError(Exception):
    """One line that says why it cannot be listened on, and what to do."""


def web_host(host: str) -> str:
    """A host to connect to, where `host` is one to listen on."""
    return _WILDCARDS.get(host, host)


def check_free(host: str, port: int, *, setting: str = "TASKGATE_PORT") -> None:
    """Ask here, once, rather than let a service find out again and again. `setting`: where the port comes from.

    Raises:
        AddressError: nobody can listen there.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError:  # of a host name that is too long, or has an empty part
        raise AddressError(f"cannot listen on {host} port {port}: TASKGATE_HOST is no host name") from None
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        advice = f"stop what uses it, or choose another with {setting} (0 picks a free one)"
        raise AddressError(
            f"cannot listen on {host} port {port} ({error.strerror}): "
            + (advice if taken else f"TASKGATE_HOST must be an address of this machine, {setting} one you may use")
        ) from None


async def readiness(host: str, port: int) -> tuple[int, bytes]:
    """Status code and body of `/readyz`, 0 when nobody answers. A small request: `up` needs no HTTP client for more."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer):
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split(None, 2)[1]), body
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0, b""

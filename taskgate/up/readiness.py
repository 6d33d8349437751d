"""Whether the gateway says that it is ready: one small request, since `up` needs no HTTP client for more."""

import asyncio
import contextlib

_TIMEOUT_S = 2.0


async def readiness(host: str, port: int) -> tuple[int, bytes]:
    """Status code and body of `/readyz`; 0 when nobody answers."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer):
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split(None, 2)[1]), body
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0, b""

"""A link between client and gateway on which every connection goes wrong, each in its own way."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_BYTES = 1 << 16
_FAULTS = ("refused", "reply lost", "full", "unavailable", *["cut"] * 6)


class FaultyLink:
    """A TCP proxy. `longest`: bytes of answers that a connection carries at most; `faults` counts what has struck."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._serving: set[asyncio.Task[None]] = set()
        self.longest = 8_000
        self.faults: dict[str, int] = dict.fromkeys(_FAULTS, 0)
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        try:
            await self._strike(self._random.choice(_FAULTS), reader, writer)
        except OSError:
            pass
        except asyncio.CancelledError:
            pass  # the link is closed
        finally:
            self._serving.discard(serving)
            writer.transport.abort()

    async def _strike(self, fault: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.faults[fault] += 1
        match fault:
            case "refused":
                return
            case "full" | "unavailable":
                await reader.read(_BYTES)
                writer.write(_problem(429, "queue-full") if fault == "full" else _problem(503, "service-draining"))
                await writer.drain()
                writer.write_eof()
                await reader.read()
            case "reply lost":
                await self._forward(reader, writer, answer_bytes=0)
            case "cut":
                await self._forward(reader, writer, answer_bytes=self._random.randrange(1, self.longest))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answer_bytes: int) -> None:
        """What is asked goes through; the connection breaks after so many bytes of answers."""
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.ensure_future(_pump(reader, their_writer))
        try:
            while data := await their_reader.read(_BYTES):
                writer.write(data[:answer_bytes])
                await writer.drain()
                answer_bytes -= len(data)
                if answer_bytes <= 0:
                    return
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            their_writer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_BYTES):
        sink.write(data)
        await sink.drain()
    sink.transport.abort()


def _problem(status: int, slug: str) -> bytes:
    body = b'{"type":"/problems/%s","title":"%s","status":%d}' % (slug.encode(), slug.encode(), status)
    head = (
        b"HTTP/1.1 %d X\r\nContent-Type: application/problem+json\r\nRetry-After: 0\r\nConnection: close\r\n" % status
    )
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def faulty_link(port: int, *, seed: int) -> AsyncIterator[FaultyLink]:
    link = FaultyLink(port, seed)
    await link.start()
    try:
        yield link
    finally:
        await link.close()

"""A link that can fail: a TCP proxy on loopback before a server's unix socket."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_BYTES = 1 << 16
_DROP = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset."""


class Proxy:
    """Forwards bytes as they come. A frozen link delivers nothing and loses nothing; one that swallows delivers what is
    asked and loses what is answered, so its connections are broken afterwards.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path
        self._flows = asyncio.Event()
        self._flows.set()
        self._swallows = False
        self._links: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0
        """What is asked arrives that much later; answers do not."""
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{port}"

    async def close(self) -> None:
        self._server.close()
        for _ in range(3):  # what has been accepted is made known in the next turns of the loop
            await asyncio.sleep(0)
        self._flows.set()
        while self._serving:
            self.cut()
            await asyncio.wait(self._serving, timeout=0.1)

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def cut(self, *, reset: bool = False) -> None:
        """Break every connection; new ones are taken. `reset`: with a word to the client that all is over."""
        for writer in list(self._links):
            found = writer.get_extra_info("socket")
            if reset and found.family == socket.AF_INET and not writer.is_closing():
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP)
            writer.transport.abort()

    def swallow(self) -> None:
        self._swallows = True

    def answer(self) -> None:
        """No longer swallow; who lost an answer is cut off."""
        self._swallows = False
        self.cut()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Known at once, not in a first turn of its own: a task that is cancelled before that closes nothing."""
        self._links.add(writer)
        serving = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = [writer]
        try:
            their_reader, their_writer = await asyncio.open_unix_connection(self._path)
            both.append(their_writer)
            self._links.add(their_writer)
            pumps = [
                asyncio.ensure_future(self._pump(reader, their_writer, answers=False)),
                asyncio.ensure_future(self._pump(their_reader, writer, answers=True)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            for each in both:
                self._links.discard(each)
                each.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await source.read(_BYTES):
            await self._flows.wait()
            if self.delay_s and not answers:
                asyncio.get_running_loop().call_later(self.delay_s, _deliver, sink, data)
            elif not (answers and self._swallows):
                sink.write(data)
                await sink.drain()


def _deliver(sink: asyncio.StreamWriter, data: bytes) -> None:
    if not sink.is_closing():
        sink.write(data)


@asynccontextmanager
async def proxy(socket_path: Path) -> AsyncIterator[Proxy]:
    made = Proxy(socket_path)
    await made.start()
    try:
        yield made
    finally:
        await made.close()

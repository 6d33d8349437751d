"""The way of one supervisor to the server, to be frozen and cut."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path


class Link:
    """Passes bytes between a socket of its own and the server's, as long as it is not frozen."""

    def __init__(self, path: Path, server: Path) -> None:
        self.path = path
        self._server = server
        self._asks, self._answers = asyncio.Event(), asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None
        self.thaw()

    async def open(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, self.path)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self.thaw()
            self.cut()
            self._listener = None

    def freeze(self, *, answers_only: bool = False) -> None:
        """No byte passes any more; connections stay, and new ones are taken. Cut then, what was held is lost."""
        self._answers.clear()
        if not answers_only:
            self._asks.clear()

    def thaw(self) -> None:
        self._asks.set()
        self._answers.set()

    def cut(self) -> None:
        """Every connection breaks."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._open(writer), contextlib.suppress(OSError):
            back, forth = await asyncio.open_unix_connection(self._server)
            with self._open(forth):
                flows = [
                    asyncio.ensure_future(_pass(reader, forth, self._asks)),
                    asyncio.ensure_future(_pass(back, writer, self._answers)),
                ]
                try:
                    await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for flow in flows:
                        flow.cancel()
                    await asyncio.gather(*flows, return_exceptions=True)

    @contextlib.contextmanager
    def _open(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter, flows: asyncio.Event) -> None:
    """Until one side is gone."""
    while chunk := await source.read(1 << 16):
        await flows.wait()
        target.write(chunk)
        await target.drain()

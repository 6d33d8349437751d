"""A client of event streams down to the socket: reads as little as it is told, and resumes as a browser does."""

import asyncio
import json
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Block(NamedTuple):
    name: str
    event_id: str
    """Empty: it has none of its own."""
    data: dict[str, Any]


class Resuming:
    """Follows one URL over many connections: whole blocks count, what a cut leaves of one does not."""

    def __init__(self, url: str, path: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._path = path
        self.blocks: list[Block] = []
        self.last_id = ""
        self.done = False
        """Told not to come back."""
        self.statuses: list[int] = []

    async def connect(self) -> "Connected":
        reader, writer = await asyncio.open_connection(self._host, self._port)
        seen = f"Last-Event-ID: {self.last_id}\r\n" if self.last_id else ""
        writer.write(f"GET {self._path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{seen}\r\n".encode())
        return Connected(self, reader, writer)

    async def read(self, *, most: int | None = None, idle_s: float = 10.0) -> None:
        """One connection: until `most` bytes have come, or nothing for `idle_s`, or it ends; then it is reset."""
        connected = await self.connect()
        try:
            await connected.read(most=most, idle_s=idle_s)
        finally:
            connected.reset()

    def take(self, block: bytes) -> None:
        fields: dict[str, str] = {}
        for line in block.decode().splitlines():
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        self.last_id = fields.get("id", self.last_id)
        if "data" in fields:
            self.blocks.append(Block(fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])))


class Connected:
    def __init__(self, client: Resuming, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._client = client
        self._reader = reader
        self._writer = writer
        self._buffer = self._text = b""
        self._in_chunk = 0
        self.head = b""
        self.ended = False
        """It had its last chunk."""

    async def read(self, *, most: int | None = None, blocks: int | None = None, idle_s: float = 10.0) -> None:
        """Until `most` bytes have come, or the client has so many `blocks`, or nothing for `idle_s`, or the end."""
        left = most if most is not None else 1 << 60
        while left > 0 and (blocks is None or len(self._client.blocks) < blocks):
            try:
                data = await asyncio.wait_for(self._reader.read(min(left, 1 << 16)), idle_s)
            except (TimeoutError, ConnectionError):
                return
            if not data:
                return
            left -= len(data)
            self._buffer += data
            if not self.head:
                head, found, rest = self._buffer.partition(b"\r\n\r\n")
                if not found:
                    continue
                self.head, self._buffer = head, rest
                self._client.statuses.append(int(head[9:12]))
                if self._client.statuses[-1] != 200:
                    self._client.done = self._client.statuses[-1] == 204
                    return
            *whole, self._text = (self._text + self._unchunked()).split(b"\r\n\r\n")
            for block in whole:
                self._client.take(block)

    def _unchunked(self) -> bytes:
        """What of the body has come, without its chunks' frames."""
        body = b""
        while self._buffer:
            if self._in_chunk == 0:
                size, found, rest = self._buffer.partition(b"\r\n")
                if not found:
                    break
                self._buffer, self._in_chunk = rest, int(size, 16) + 2
                self.ended = self.ended or self._in_chunk == 2
            part, self._buffer = self._buffer[: self._in_chunk], self._buffer[self._in_chunk :]
            self._in_chunk -= len(part)
            body += part if self._in_chunk >= 2 else part[: len(part) - (2 - self._in_chunk)]
        return body

    def reset(self) -> None:
        self._writer.transport.abort()

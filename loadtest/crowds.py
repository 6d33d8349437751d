"""Crowds of clients that come all at once and, refused, come again when they are told to."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_PATIENCE_S = 30


@dataclass(frozen=True)
class Answer:
    """To one submission; `sent_s` by the monotonic clock."""

    sent_s: float
    took_s: float
    status: int
    retry_after_s: int


class Wire:
    """One kept-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, url: str) -> "Wire":
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def submit(self, body: str) -> Answer:
        sent_s = time.monotonic()
        data = body.encode()
        self._writer.write(
            b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(data), data)
        )
        async with asyncio.timeout(_PATIENCE_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = head.lower().split(b"\r\n")
            headers = dict(line.split(b": ", 1) for line in lines if line)
            await self._reader.readexactly(int(headers[b"content-length"]))
        return Answer(sent_s, time.monotonic() - sent_s, int(first.split()[1]), int(headers.get(b"retry-after", b"0")))

    def close(self) -> None:
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def _wires(url: str, count: int) -> AsyncIterator[list[Wire]]:
    wires = [await Wire.to(url) for _ in range(count)]
    try:
        yield wires
    finally:
        for wire in wires:
            wire.close()


async def obeying(url: str, bodies: Sequence[str]) -> list[Answer]:
    """A client for each body, all of them at once, who on 429 comes again after Retry-After until it gets in."""

    async def client(wire: Wire, body: str) -> list[Answer]:
        answers = [await wire.submit(body)]
        while answers[-1].status == 429:
            await asyncio.sleep(answers[-1].retry_after_s)
            answers.append(await wire.submit(body))
        return answers

    async with _wires(url, len(bodies)) as wires:
        each = await asyncio.gather(*map(client, wires, bodies))
    return [answer for answers in each for answer in answers]


def busiest(answers: Sequence[Answer], *, after_s: float) -> int:
    """Most submissions within a second, of those sent after that time."""
    times = sorted(answer.sent_s for answer in answers if answer.sent_s > after_s)
    return max((sum(1 for other in times[n:] if other < at + 1) for n, at in enumerate(times)), default=0)

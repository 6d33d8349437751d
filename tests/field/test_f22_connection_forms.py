"""F22, connection string forms: each works, or stops the start with one clear line that does not show the secret."""

import gc
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from taskgate.doctor import look_at_redis
from taskgate.settings import SettingsError, load
from tests.conftest import Server, eventually
from tests.processes import free_port
from tests.system.rig import Rig
from tests.tls import certificates

__all__ = ["certificates"]

ROOT = Path(__file__).parents[2]
SECRET = "s3cret"
CHARACTERS = "/#?:@%+=é"


class OnTcp(Server):
    """Listens on both loopback addresses, in the ways that `options` say."""

    def __init__(self, binary: str, folder: Path) -> None:
        super().__init__(binary, folder)
        self.port = free_port()

    def begin(self, *options: str) -> None:
        self.start("--bind", "127.0.0.1", "::1", "--port", str(self.port), *options)

    def tcp(self, login: str = "", *, host: str = "127.0.0.1", rest: str = "", scheme: str = "redis") -> str:
        return f"{scheme}://{login and f'{login}@'}{host}:{self.port}{rest}"


@pytest.fixture
def server(own_server: Server, tmp_path: Path) -> Iterator[OnTcp]:
    """The same binary as `own_server`, not started."""
    server = OnTcp(own_server.binary, tmp_path)
    yield server
    server.stop()


def admin(server: Server, *commands: str) -> None:
    with redis.Redis.from_url(f"unix://{server.folder}/redis.sock") as client:
        for command in commands:
            client.execute_command(*command.split(" "))


def refusal(url: str, **options: object) -> str:
    """The line that stops the start."""
    with pytest.raises(SettingsError) as stopped:
        look_at_redis(load({}, redis_url=url, **options))
    [line] = str(stopped.value).splitlines()
    assert SECRET not in line
    return line


@pytest.mark.parametrize("character", CHARACTERS)
@pytest.mark.parametrize("form", ["tcp", "unix"])
def test_a_password_with_that_character_works_encoded(server: OnTcp, character: str, form: str) -> None:
    password = f"{character}{SECRET}{character}x"
    server.begin()
    admin(server, f"CONFIG SET requirepass {password}")
    login = f":{quote(password, safe='')}"
    url = server.tcp(login) if form == "tcp" else f"unix://{login}@{server.folder}/redis.sock"
    look_at_redis(load({}, redis_url=url))
    refusal(server.tcp(f":{quote(password + 'y', safe='')}"))


@pytest.mark.parametrize("character", CHARACTERS)
@pytest.mark.parametrize("form", ["redis://:{}@127.0.0.1:{}", "unix://:{}@/tmp/{}"])
def test_a_raw_password_is_understood_or_stops_the_start(character: str, form: str) -> None:
    url = form.format(f"6{character}{SECRET}", 6379)  # 6: cut apart there, it would be a port
    if character in ":@+=":
        assert load({}, redis_url=url).redis_url is not None
    else:
        line = refusal(url)
        assert line.startswith("TASKGATE_REDIS_URL: not a redis://")
        assert "percent-encoded" in line


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://127.0.0.1:6379/first", "database is not a number"),
        ("redis://127.0.0.1:6379?db=x", "database is not a number"),
        ("redis://127.0.0.1:6379?socket_timeout=900", "options of the URL can be"),
        ("redis://127.0.0.1:6379?decode_responses=true", "options of the URL can be"),
        ("unix://no/absolute/path", "not a redis://"),
        ("redis://[::1:6379", "not a redis://"),
        ("redis://127.0.0.1:6379#1", "not a redis://"),
    ],
)
def test_what_would_go_elsewhere_or_change_our_policy_stops_the_start(url: str, why: str) -> None:
    assert why in refusal(url)


def test_a_database_that_the_server_does_not_have_stops_the_start(server: OnTcp) -> None:
    server.begin()
    look_at_redis(load({}, redis_url=server.tcp(rest="/15")))
    assert "out of range" in refusal(server.tcp(rest="/16"))


def test_a_user_who_lacks_a_permission_is_told_at_the_start(server: OnTcp) -> None:
    server.begin()
    admin(
        server,
        f"ACL SETUSER whole on >{SECRET} ~tg:* &tg:* +@all",
        f"ACL SETUSER careful on >{SECRET} ~tg:* &tg:* +@all -@dangerous",
        f"ACL SETUSER deaf on >{SECRET} ~tg:* resetchannels +@all",
        f"ACL SETUSER narrow on >{SECRET} ~other:* &* +@all",
    )
    for user in ("whole", "careful"):
        look_at_redis(load({}, redis_url=server.tcp(f"{user}:{SECRET}")))
    for user in ("deaf", "narrow"):
        assert "~tg:* &tg:*" in refusal(server.tcp(f"{user}:{SECRET}"))


def test_a_server_in_cluster_mode_is_refused(server: OnTcp) -> None:
    server.begin("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    assert "Redis Cluster is not supported" in refusal(server.tcp())


@pytest.mark.parametrize("command", ["gateway", "worker", "up"])
def test_a_wrong_password_ends_the_process_at_once(server: OnTcp, command: str) -> None:
    server.begin()
    admin(server, "CONFIG SET requirepass right")
    url = server.tcp(f":{SECRET}")
    done = subprocess.run(
        [sys.executable, "-m", "taskgate", command, "--redis-url", url, "--port", str(free_port())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done
    assert done.stderr.splitlines()[-1].startswith("taskgate: redis: refuses us")
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.full
async def test_a_service_on_ipv6_with_user_password_and_database(server: OnTcp, tmp_path: Path) -> None:
    """The whole way of a task, and the secret in no log, health or error answer."""
    password = f"{SECRET}{CHARACTERS}"
    server.begin()
    admin(server, f"ACL SETUSER me on >{password} ~tg:* &tg:* +@all")
    rig = Rig(server, tmp_path)
    rig.settings["TASKGATE_REDIS_URL"] = server.tcp(f"me:{quote(password, safe='')}", host="[::1]", rest="/3")
    rig.redis.connection_pool.connection_kwargs["db"] = 3
    try:
        await rig.worker()
        await rig.gateway()
        task_id = await rig.submit("cpu", {"ms": 1})
        assert (await rig.ended(task_id))["status"] == "succeeded"
        server.stop()

        async def health() -> str:
            return (await rig.http.get("/readyz")).text

        shown = await eventually(health, lambda text: '"ok":false' in text.replace(" ", ""))
        shown += (await rig.http.post("/tasks", json={"type": "cpu", "payload": {"ms": 1}})).text
        server.begin()
        admin(server, f"ACL SETUSER me on >{password} ~tg:* &tg:* +@all")
    finally:
        await rig.close()
    logs = "".join((tmp_path / f"{name}.log").read_text() for name in ("worker", "gateway"))
    assert logs
    assert SECRET not in shown + logs


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_tls_with_a_good_a_self_signed_and_a_missing_certificate(certificates: Path, tmp_path: Path) -> None:
    binary = shutil.which("redis-server")
    assert binary is not None, "redis-server is missing; apt-get install redis-server"
    tls = certificates
    trusted = f"?ssl_ca_certs={tls}/ca.crt"
    ours = f"&ssl_certfile={tls}/client.crt&ssl_keyfile={tls}/client.key"
    for name, good in (("server", True), ("self", False)):
        server = OnTcp(binary, tmp_path)
        server.start(
            *("--bind", "127.0.0.1", "--tls-port", str(server.port), "--tls-ca-cert-file", f"{tls}/ca.crt"),
            *("--tls-cert-file", f"{tls}/{name}.crt", "--tls-key-file", f"{tls}/{name}.key"),
        )
        try:
            if good:
                look_at_redis(load({}, redis_url=server.tcp(scheme="rediss", rest=trusted + ours)))
                assert "no TLS with it" in refusal(server.tcp(scheme="rediss", rest=trusted)), "no certificate of ours"
                missing = f"?ssl_ca_certs={tls}/none.crt"
                assert "ssl_ca_certs" in refusal(server.tcp(scheme="rediss", rest=missing))
            else:
                assert "CERTIFICATE_VERIFY_FAILED" in refusal(server.tcp(scheme="rediss", rest=trusted + ours))
            assert "no TLS with it" in refusal(server.tcp(scheme="rediss")), "an authority that nobody knows"
        finally:
            server.stop()
    gc.collect()  # asyncio under redis-py leaves the transports of refused handshakes behind, unclosed

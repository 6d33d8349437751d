"""Settings as options, and what `taskgate settings` says of them."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ByteSize

from taskgate.settings import Settings, SettingsError, load
from tests.cli.conftest import Cli


@pytest.mark.parametrize("command", ["up", "gateway", "worker", "settings", "doctor"])
def test_every_setting_is_an_option(cli: Cli, command: str) -> None:
    shown = cli(command, "--help").output
    missing = [name for name in Settings.model_fields if f"--{name.replace('_', '-')}" not in shown]
    assert missing == []


@pytest.mark.parametrize("command", ["up", "gateway", "worker", "settings", "doctor"])
def test_each_wrong_setting_is_one_line_and_nothing_starts(cli: Cli, command: str) -> None:
    done = cli(command, "--port", "99999", "--queue-limit-tasks=-1", env={"TASKGATE_LEASE_S": "soon"})

    assert done.exit_code == 2
    assert done.stdout == ""
    assert [line.split(": ")[:2] for line in sorted(done.stderr.splitlines())] == [
        ["taskgate", "--port"],
        ["taskgate", "--queue-limit-tasks"],
        ["taskgate", "TASKGATE_LEASE_S"],
    ]


def test_an_unknown_variable_is_named_with_the_nearest_setting(cli: Cli) -> None:
    done = cli("settings", env={"TASKGATE_LEASES_S": "3"})

    assert done.exit_code == 2
    assert done.stderr == "taskgate: TASKGATE_LEASES_S: no such setting; did you mean TASKGATE_LEASE_S?\n"


def test_options_win_over_the_environment_and_each_source_is_shown(cli: Cli) -> None:
    done = cli("settings", "--json", "--port", "1234", env={"TASKGATE_PORT": "99", "TASKGATE_QUEUES": "a, b"})

    found = json.loads(done.stdout)
    assert found.keys() == Settings.model_fields.keys()
    assert (found["port"]["value"], found["port"]["source"]) == ("1234", "option")
    assert (found["queues"]["value"], found["queues"]["source"]) == ("a,b", "environment")
    assert (found["lease_s"]["value"], found["lease_s"]["source"]) == ("6.0", "default")
    assert all(one["description"] for one in found.values())


def test_what_the_policy_file_says_is_shown(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[queues.mail]\nlimit_bytes = "1 MiB"\non_full = "spill"\n[tenants."*"]\nrate_per_s = 5\n')
    shown = cli("settings", "--policy-file", str(path)).stdout
    found = json.loads(cli("settings", "--policy-file", str(path), "--json").stdout)["policy_file"]

    assert shown.splitlines()[-2:] == [
        "policy: queues.mail: limit_bytes = 1048576, on_full = spill",
        "policy: tenants.*: rate_per_s = 5.0",
    ]
    assert (found["value"], found["source"]) == (str(path), "option")
    said = {"queues": {"mail": {"limit_bytes": 1 << 20, "on_full": "spill"}}, "tenants": {"*": {"rate_per_s": 5.0}}}
    assert found["policy"] == said


def test_a_switch_is_a_flag(cli: Cli) -> None:
    found = json.loads(cli("settings", "--json", "--insecure", "--host", "0.0.0.0").stdout)
    assert found["insecure"]["value"] == "true"


@pytest.mark.parametrize(
    "form", [["settings"], ["settings", "--json"], ["settings", "--port=x"], ["worker", "--port=x"]]
)
def test_secrets_are_never_shown(cli: Cli, form: list[str]) -> None:
    secrets = {"TASKGATE_API_KEY": "s3cret-key", "TASKGATE_REDIS_URL": "redis://me:s3cret-pass@db:6379/0"}
    done = cli(*form, env=secrets)

    assert "s3cret" not in done.output
    assert ("********" in done.stdout) == (done.exit_code == 0)


@pytest.mark.parametrize("command", ["gateway", "worker"])
def test_parts_that_need_a_redis_say_so(cli: Cli, command: str) -> None:
    done = cli(command)

    assert done.exit_code == 2
    assert done.stderr.startswith("taskgate: --redis-url: needed here")


@pytest.mark.parametrize("command", ["up", "gateway", "worker", "doctor"])
@pytest.mark.parametrize(
    "url", ["http://s3cret", "s3cret", "redis://me:3s/s3cret@db:6379", "redis://me:3/s3cret@db", "redis://db:s3cret"]
)
def test_a_redis_url_that_is_none_starts_nothing_and_is_not_shown(cli: Cli, command: str, url: str) -> None:
    done = cli(command, env={"TASKGATE_REDIS_URL": url})

    assert done.exit_code == 2
    assert done.stderr.startswith("taskgate: TASKGATE_REDIS_URL: not a redis://")
    assert "s3cret" not in done.output


@pytest.mark.parametrize(
    "url", ["redis://db", "rediss://u:p%40%2F@db:6379/0", "redis://:p@[::1]:6379", "unix:///a@b?db=1"]
)
def test_a_redis_url_that_is_one(cli: Cli, url: str) -> None:
    assert cli("settings", "--redis-url", url).exit_code == 0


def test_a_check_of_several_settings_names_the_one_to_change(cli: Cli) -> None:
    by_option = cli("gateway", "--host", "0.0.0.0")
    by_variable = cli("gateway", env={"TASKGATE_HOST": "0.0.0.0"})
    needs = "a non-loopback address needs TASKGATE_API_KEY, or TASKGATE_INSECURE=true if it is meant"
    assert by_option.stderr == f"taskgate: --host: {needs}\n"
    assert by_variable.stderr == f"taskgate: TASKGATE_HOST: {needs}\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    assert load({"TASKGATE_HOST": host}).host == host


@pytest.mark.parametrize(
    "host", ["127.example.com", "127.0.0.1.example.com", "127.", "localhost.example.com", "::", "db"]
)
def test_what_only_looks_like_loopback_needs_a_key(host: str) -> None:
    with pytest.raises(SettingsError, match=r"^TASKGATE_HOST: a non-loopback address needs TASKGATE_API_KEY"):
        load({"TASKGATE_HOST": host})


@pytest.mark.parametrize("key", [" key", "pad key ", "k\u00e9y", "a\nb", "a\0b"])
def test_a_key_that_no_client_could_send_starts_nothing_and_is_not_shown(key: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load({"TASKGATE_API_KEY": key})
    assert str(raised.value) == "TASKGATE_API_KEY: a key is printable ASCII without spaces around it"


def test_an_empty_key_is_none_that_was_forgotten() -> None:
    with pytest.raises(SettingsError, match=r"^TASKGATE_API_KEY: "):
        load({"TASKGATE_HOST": "0.0.0.0"}, api_key="")


NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float, ByteSize)]


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "1e308", "9" * 30])
@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_bounds(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^TASKGATE_{name.upper()}: [^\n]+$"):
        load({f"TASKGATE_{name.upper()}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue_limit_bytes", "0"),
        ("max_body_bytes", "0"),
        ("result_max_bytes", "0B"),
        ("max_body_bytes", "257MiB"),
        ("retention_s", str(3651 * 86_400)),
        ("dead_retention_s", str(3651 * 86_400)),
        ("pause_s", "86401"),
        ("grace_s", "86401"),
        ("stall_after_s", str(31 * 86_400)),
        ("gateway_processes", "1025"),
        ("worker_processes", "1025"),
        ("async_processes", "1025"),
    ],
)
def test_what_nobody_can_mean_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^TASKGATE_{name.upper()}: "):
        load({f"TASKGATE_{name.upper()}": value})


@pytest.mark.parametrize("given", ["", " ", ","])
def test_no_handlers_at_all_is_refused(cli: Cli, given: str) -> None:
    said = [cli("settings", env={"TASKGATE_HANDLERS": given}), cli("settings", "--handlers", given)]
    assert [(one.exit_code, one.stderr) for one in said] == [
        (2, "taskgate: TASKGATE_HANDLERS: name at least one module\n"),
        (2, "taskgate: --handlers: name at least one module\n"),
    ]


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        command = [sys.executable, "-m", "taskgate", "gateway", "--redis-url", "redis://127.0.0.1:1", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"taskgate: TASKGATE_HOST, TASKGATE_PORT: 127.0.0.1:{port}: Address already in use\n"


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    """In a fresh interpreter: what this one has imported proves nothing."""
    heavy = ["pydantic", "httpx", "redis", "msgspec", "structlog", "fastapi", "uvicorn", "app", "workers"]
    probe = (
        "import sys, taskgate.cli\n"
        "sys.argv = ['taskgate', '--help']\n"
        "try:\n    taskgate.cli.main()\n"
        f"except SystemExit: print('LOADED', *sorted(set(sys.modules) & set({heavy!r})))"
    )
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "LOADED"
    assert "dead-letters" in shown


def test_python_m_taskgate_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "taskgate", "settings"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SETTING ")

"""Secrets from files: read once, without the line end, shown nowhere, and what is wrong with one is said without it."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from taskgate.settings import SECRETS, SettingsError, load, variable
from taskgate.up.environment import environment, without_settings
from tests.cli.conftest import Cli, Receiver, answer

KEY = "s3cret-key"
URL = "redis://me:s3cret-pass@db:6379/0"


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_the_secrets_are_these() -> None:
    assert {"api_key", "redis_url"} <= set(SECRETS)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_secret_is_what_its_file_holds_without_the_line_end(tmp_path: Path, end: str) -> None:
    found = load({f"{variable(name)}_FILE": write(tmp_path / name, URL + end) for name in ("redis_url",)})

    assert found.redis_url is not None
    assert found.redis_url.get_secret_value() == URL


def test_a_file_may_be_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(f"{URL}\n"))
    writer.start()

    found = load({"TASKGATE_REDIS_URL_FILE": str(pipe)})
    writer.join()

    assert found.redis_url is not None
    assert found.redis_url.get_secret_value() == URL


def test_every_file_that_is_wrong_is_a_line_and_its_content_is_in_none(tmp_path: Path) -> None:
    wrong = {
        "TASKGATE_REDIS_URL": b"\xff s3cret",
        "TASKGATE_API_KEY": b"s3cret" * 20_000,
    }
    given = {f"{name}_FILE": write(tmp_path / name, content) for name, content in wrong.items()}

    with pytest.raises(SettingsError) as raised:
        load(given)

    lines = sorted(str(raised.value).splitlines())
    assert lines == [
        f"TASKGATE_API_KEY_FILE: {tmp_path}/TASKGATE_API_KEY: larger than a secret",
        f"TASKGATE_REDIS_URL_FILE: {tmp_path}/TASKGATE_REDIS_URL: not text in UTF-8",
    ]


@pytest.mark.parametrize(("content", "says"), [("\n", "empty"), (None, "No such file or directory")])
def test_a_file_without_a_secret_starts_nothing(cli: Cli, tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        write(path, content)

    done = cli("gateway", env={"TASKGATE_API_KEY_FILE": str(path)})

    assert (done.exit_code, done.stderr) == (2, f"taskgate: TASKGATE_API_KEY_FILE: {path}: {says}\n")


def test_a_secret_given_twice_starts_nothing(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "key", KEY)
    done = cli("settings", env={"TASKGATE_API_KEY": "s3cret-other", "TASKGATE_API_KEY_FILE": path})

    assert done.exit_code == 2
    assert done.stderr == "taskgate: TASKGATE_API_KEY_FILE: TASKGATE_API_KEY is set as well: set one of them\n"


def test_only_secrets_come_from_files(cli: Cli, tmp_path: Path) -> None:
    done = cli("settings", env={"TASKGATE_PORT_FILE": write(tmp_path / "port", "1")})

    assert done.exit_code == 2
    assert done.stderr.startswith("taskgate: TASKGATE_PORT_FILE: no such setting")


@pytest.mark.parametrize("form", [["settings"], ["settings", "--json"], ["doctor"], ["worker", "--port=x"]])
def test_a_secret_of_a_file_is_never_shown(cli: Cli, tmp_path: Path, form: list[str]) -> None:
    url = write(tmp_path / "url", "redis://me:s3cret-pass@127.0.0.1:1/0")
    done = cli(*form, env={"TASKGATE_API_KEY_FILE": write(tmp_path / "key", KEY), "TASKGATE_REDIS_URL_FILE": url})

    assert "s3cret" not in done.output


def test_settings_say_that_it_was_a_file(cli: Cli, tmp_path: Path) -> None:
    env = {"TASKGATE_API_KEY_FILE": write(tmp_path / "key", KEY)}
    found = json.loads(cli("settings", "--json", "--host", "0.0.0.0", env=env).stdout)

    assert (found["api_key"]["value"], found["api_key"]["source"]) == ("********", "file")
    assert found["redis_url"]["source"] == "default"


@pytest.mark.parametrize("form", ["file", "pipe", "variable", "option"])
def test_processes_of_up_are_given_secrets_as_files_that_each_can_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    given: dict[str, Any] = {}
    writing = threading.Thread(target=write, args=(tmp_path / "key", KEY))
    match form:
        case "file":
            monkeypatch.setenv("TASKGATE_API_KEY_FILE", write(tmp_path / "key", KEY))
        case "pipe":
            os.mkfifo(tmp_path / "key")
            writing.start()
            monkeypatch.setenv("TASKGATE_API_KEY_FILE", str(tmp_path / "key"))
        case "variable":
            monkeypatch.setenv("TASKGATE_API_KEY", KEY)
        case "option":
            given = {"api_key": KEY}
    settings = load(**given)

    for service in (environment(settings), environment(settings, port=1)):
        assert not any(KEY in value for value in service.values())
        read = (
            "import sys; from taskgate.settings import load; sys.exit(load().api_key.get_secret_value() != sys.argv[1])"
        )
        assert subprocess.run([sys.executable, "-c", read, KEY], env=service, check=False).returncode == 0
    assert "TASKGATE_API_KEY_FILE" not in without_settings()


def test_client_commands_send_the_key_of_a_file(cli: Cli, receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers.append(answer(200, {"items": []}))

    done = cli("workers", env={"TASKGATE_URL": receiver.url, "TASKGATE_API_KEY_FILE": write(tmp_path / "key", KEY)})

    assert done.exit_code == 0
    assert receiver.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_client_commands_do_not_go_without_a_key_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    done = cli("workers", env={"TASKGATE_API_KEY_FILE": str(tmp_path / "none")})

    assert done.exit_code == 2
    assert "TASKGATE_API_KEY_FILE" in done.stderr

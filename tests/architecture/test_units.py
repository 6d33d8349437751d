"""deploy/systemd: what the units must say for stops, memory and secrets to be as promised."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from app.main import DRAIN_MAX_S
from taskgate.settings import Settings, load
from taskgate.sizing import supervisor_descriptors

FOLDER = Path(__file__).parents[2] / "deploy/systemd"
UNITS = ["taskgate-gateway.service", "taskgate-worker.service"]


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / name)
    return parser


def settings() -> Settings:
    lines = (FOLDER / "taskgate.env").read_text().splitlines()
    return load(dict(line.split("=", 1) for line in lines if line and not line.startswith("#")))


@pytest.mark.parametrize("name", UNITS)
def test_the_signal_to_stop_goes_to_the_first_process_and_has_the_time_it_needs(name: str) -> None:
    service = unit(name)["Service"]
    assert service["KillMode"] == "mixed"
    needs_s = settings().grace_s if "worker" in name else DRAIN_MAX_S
    assert float(service["TimeoutStopSec"]) >= needs_s + 5
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")
    assert unit(name)["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_task_that_is_killed_for_its_memory_does_not_take_the_supervisor_along() -> None:
    assert unit("taskgate-worker.service")["Service"]["OOMPolicy"] == "continue"


@pytest.mark.parametrize("name", UNITS)
def test_descriptors_and_secrets(name: str) -> None:
    service = unit(name)["Service"]
    assert int(service["LimitNOFILE"]) >= max(16_384 + 256, supervisor_descriptors(settings()))
    assert "TASKGATE_REDIS_URL_FILE=%d/redis-url" in service["Environment"]
    assert not settings().redis_url
    assert not settings().api_key


@pytest.mark.full
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """As they are, but for the program that they run, which is not installed here."""
    for name in UNITS:
        text = (FOLDER / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/taskgate/bin/taskgate", str(shutil.which("true"))))
    command = [
        "systemd-analyze",
        "verify",
        "--man=no",
        "--recursive-errors=no",
        *(str(tmp_path / name) for name in UNITS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    ours = [line for line in done.stderr.splitlines() if "taskgate" in line]
    assert (done.returncode, ours) == (0, []), done.stderr

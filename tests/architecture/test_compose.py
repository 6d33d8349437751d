"""docker-compose.yml: its Valkey is set up like the embedded one, its services are closed, and have time to stop."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.main import DRAIN_MAX_S
from taskgate import embedded
from taskgate.settings import Settings

ROOT = Path(__file__).parents[2]
PLACES = {"port", "unixsocket", "unixsocketperm", "dir", "logfile"}
"""Where it is and who reaches it: a container's own business."""
NGINX_STREAM_BYTES = 50 * 1024
"""With TLS, by 1,500 of them."""
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
LASTING = sorted(SERVICES.keys() - {"setup"})


def test_compose_gives_valkey_the_options_of_the_embedded_one() -> None:
    lines = [line.split(None, 1) for line in embedded._CONFIGURATION.splitlines() if not line.startswith("#")]
    wanted = {name: value for name, value in lines if name not in PLACES}

    given = dict(re.findall(r"--([a-z-]+) (\S+)", SERVICES["valkey"]["command"]))

    assert {name: given.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_container_can_write_its_root_or_gain_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_is_started_anew_and_bounded(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert service["mem_limit"]
    assert service["ulimits"]["nofile"]


def test_only_nginx_is_published_and_on_loopback_unless_said_otherwise() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["nginx"]
    assert SERVICES["nginx"]["ports"] == ["${BIND:-127.0.0.1}:${PORT:-8443}:8443"]


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_a_key_is_always_required(name: str) -> None:
    environment = SERVICES[name]["environment"]
    assert environment["TASKGATE_API_KEY_FILE"]
    assert "TASKGATE_INSECURE" not in environment


def test_stop_periods_are_longer_than_what_has_to_end_in_them() -> None:
    period_s = {name: float(SERVICES[name]["stop_grace_period"].removesuffix("s")) for name in LASTING}
    shutdown = re.search(r"worker_shutdown_timeout (\d+)s;", (ROOT / "deploy" / "nginx.conf").read_text())
    assert shutdown
    assert period_s["worker"] > Settings.model_fields["grace_s"].default
    assert period_s["gateway"] > DRAIN_MAX_S
    assert period_s["nginx"] > float(shutdown[1])


def test_an_images_own_handlers_are_neither_outvoted_nor_hidden() -> None:
    """Those of a folder come by deploy/handlers.yml alone."""
    worker = SERVICES["worker"]
    assert not {"TASKGATE_HANDLERS", "TASKGATE_QUEUES"} & worker["environment"].keys()
    assert not [mount for mount in worker["volumes"] if mount.split(":")[-2] == "/handlers"]
    on_top = yaml.safe_load((ROOT / "deploy" / "handlers.yml").read_text())["services"]["worker"]
    assert [mount.split(":")[-2] for mount in on_top["volumes"]] == ["/handlers"]


def test_nginx_has_memory_for_all_the_streams_that_it_takes() -> None:
    """A stream is two of its connections."""
    config = (ROOT / "deploy" / "nginx.conf").read_text()
    [processes] = re.findall(r"^worker_processes (\d+);", config, re.MULTILINE)
    [connections] = re.findall(r"worker_connections (\d+);", config)
    [limit_gb] = re.findall(r"\$\{NGINX_MEMORY:-(\d+)g\}", SERVICES["nginx"]["mem_limit"])
    assert int(processes) * int(connections) // 2 * NGINX_STREAM_BYTES < int(limit_gb) * 1024**3


def test_an_error_is_not_valkeys_health() -> None:
    """Without -e the client's exit code is 0 for any answer, such as LOADING."""
    assert SERVICES["valkey"]["healthcheck"]["test"] == ["CMD", "valkey-cli", "-e", "ping"]


def test_nginx_never_logs_a_query() -> None:
    """A stream's token stands there; what it logs as an error shows whole requests."""
    config = (ROOT / "deploy" / "nginx.conf").read_text()
    [form] = re.findall(r"log_format plain '([^']*)'", config)
    assert not re.search(r"\$(request|request_uri|args|query_string|http_referer)\b", form)
    assert re.findall(r"^error_log \S+ (\w+);", config, re.MULTILINE) == ["crit"]

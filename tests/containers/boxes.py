"""The containers of one run: built, started, looked at, killed and taken down by docker's own commands."""

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
IMAGE = "taskgate-containers"
FILES = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)
"""NOFILE: some machines let nobody have as many as docker-compose.yml wants."""
_ON_TOP = "tests/containers/compose.yml"


def docker(*arguments: str, check: bool = True, given: str | None = None) -> str:
    done = subprocess.run(
        ["docker", *arguments], input=given, capture_output=True, text=True, check=False, timeout=600, cwd=ROOT
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"docker {' '.join(arguments)}: {(done.stderr or done.stdout)[-1500:]}")
    return done.stdout.strip()


def inspect(container: str) -> dict[str, Any]:
    [found] = json.loads(docker("inspect", container))
    return dict(found)


def build(tag: str, folder: Path = ROOT, *, dockerfile: str = "Dockerfile") -> None:
    """On the host's network: inside one of their own some machines reach no package index."""
    docker("build", "--network", "host", "--quiet", "-t", tag, "-f", str(folder / dockerfile), str(folder))


class Boxes:
    """One compose project with a name and a port of its own."""

    def __init__(self) -> None:
        self.project = f"taskgate-containers-{os.getpid()}"
        self.port = _free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._compose = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKGATE_")} | {
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE_FILE": f"docker-compose.yml:deploy/handlers.yml:{_ON_TOP}",
            "PORT": str(self.port),
            "IMAGE": IMAGE,
            "NOFILE": str(FILES),
            "HANDLERS_DIR": "./tests/containers/handlers",
            "TASKGATE_HANDLERS": "workers.handlers,boxed",
            "TASKGATE_QUEUES": "default,burst",
        }

    def compose(self, *arguments: str, check: bool = True, given: str | None = None) -> str:
        return self._run([*self._compose, *arguments], check=check, given=given)

    def follow(self, page: str, marker: str, **places: str) -> None:
        """Runs the only commands of that page in which the marker stands, as they stand there."""
        found = re.findall(r"```sh\n([^`]*)```", (ROOT / "docs" / page).read_text())
        [commands] = [each for each in found if marker in each]
        self.environment |= places
        self._run(["bash", "-euc", commands.replace("docker-compose ", f"{' '.join(self._compose)} ")])

    def own_image(self, image: str) -> None:
        """No handlers but those that it brings, from now on."""
        self.environment |= {"IMAGE": image, "COMPOSE_FILE": f"docker-compose.yml:{_ON_TOP}"}

    def _run(self, command: list[str], *, check: bool = True, given: str | None = None) -> str:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=ROOT,
            env=self.environment,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-1500:]}")
        return done.stdout

    @contextlib.contextmanager
    def up(self, folder: Path) -> Iterator["Boxes"]:
        """Two gateways and three workers, all healthy; the certificate is left in `folder`. Nothing stays after it."""
        try:
            self.compose("up", "--detach", "--no-build", "--scale", "gateway=2", "--scale", "worker=3")
            asyncio.run(self.healthy())
            self.certificate = folder / "tls.crt"
            self.certificate.write_text(self.compose("exec", "-T", "nginx", "cat", "/run/tls/tls.crt"))
            self.read_key()
            # What was scaled by an option would be scaled back by the next `up`.
            self.environment |= {"GATEWAYS": "2", "WORKERS": "3"}
            yield self
        finally:
            self.compose("down", "--volumes", "--timeout", "10", check=False)

    def read_key(self) -> None:
        self.key = self.compose("exec", "-T", "gateway", "cat", "/run/taskgate/api-key").strip()

    def containers(self, service: str = "") -> list[str]:
        """Ids, also of those that stand still."""
        found = docker(
            *("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=com.docker.compose.project={self.project}"),
            *(("--filter", f"label=com.docker.compose.service={service}") if service else ()),
        )
        return found.split()

    async def healthy(self, *, within_s: float = 120) -> None:
        """Every service but the one that ends runs and is healthy."""
        deadline = time.monotonic() + within_s
        while bad := await asyncio.to_thread(self._unhealthy):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not healthy after {within_s:.0f} s: {bad}")
            await asyncio.sleep(0.5)

    def _unhealthy(self) -> dict[str, str]:
        states = {inspect(one)["Name"]: inspect(one)["State"] for one in self.containers()}
        return {
            name: f"{state['Status']}, {state.get('Health', {}).get('Status')}"
            for name, state in states.items()
            if "setup" not in name and state.get("Health", {}).get("Status") != "healthy"
        }

    async def kill(self, service: str) -> float:
        """SIGKILL to all processes of one of its containers; seconds until docker has started it anew."""
        container = self.containers(service)[0]
        before, started = inspect(container), time.monotonic()
        try:
            os.kill(before["State"]["Pid"], signal.SIGKILL)  # `docker kill` would be taken for a wish
        except PermissionError:
            docker("kill", container)
            docker("start", container)
        while inspect(container)["State"]["StartedAt"] == before["State"]["StartedAt"]:
            if time.monotonic() > started + 60:
                raise RuntimeError(f"{service} was not started anew")
            await asyncio.sleep(0.1)
        return time.monotonic() - started


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

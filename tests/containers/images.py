"""The image by itself: its size, processes and signals after a plain `docker run`, and what is built FROM it."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.containers.boxes import IMAGE, Boxes, build, docker, inspect
from tests.containers.users import client

Say = Callable[[str], None]
_BARE = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"]
_ZOMBIES = "import pathlib; print(sum(') Z ' in p.read_text() for p in pathlib.Path('/proc').glob('[0-9]*/stat')))"
_DERIVED = "iniconfig"
"""A small package that the service does not have."""
_MINE = """
import importlib.util
from taskgate import handler

@handler("mine.has")
def has(payload: str) -> list[int | bool]:
    return [{version}, importlib.util.find_spec(payload) is not None]
"""


def size() -> str:
    layers = docker(
        "history", "--no-trunc", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", IMAGE
    ).splitlines()
    ours = []
    for layer in layers:  # newest first
        number, _, made_by = layer.partition(" ")
        ours.append(int(number))
        if "tini" in made_by and "apt-get" in made_by:
            break
    whole = int(docker("image", "inspect", "--format", "{{.Size}}", IMAGE))
    assert sum(ours) < 150e6, f"the image adds {sum(ours) / 1e6:.0f} MB"
    return f"the image adds {sum(ours) / 1e6:.0f} MB to its base, {whole / 1e6:.0f} MB with it"


async def alone(boxes: Boxes, say: Say) -> None:
    """Process 1 passes signals on and reaps, without any help of `docker run`."""
    for command in ("gateway", "worker"):
        with _running(boxes, IMAGE, command) as name:
            await _healthy(name)
            assert docker("exec", name, "id", "-u") == "10001", f"{command} runs as root"
            docker("exec", name, "sh", "-c", "(sleep 0.3 &) ; true")  # an orphan
            await asyncio.sleep(1)
            assert docker("exec", name, "python", "-c", _ZOMBIES) == "0", f"{command}: a zombie is left"
            started = time.monotonic()
            await asyncio.to_thread(docker, "stop", "--time", "40", name)
            took_s, code = time.monotonic() - started, inspect(name)["State"]["ExitCode"]
            assert code == 0, f"{command}: exit code {code} after SIGTERM"
            assert took_s < 35, f"{command}: stopping took {took_s:.1f} s"
        say(f"plain `docker run` of the {command}: healthy, no zombie, SIGTERM is exit code 0 after {took_s:.1f} s")


async def derived(boxes: Boxes, say: Say) -> None:
    """Own handlers and packages FROM the image, started by compose; all else here runs those of a folder."""
    image = f"{IMAGE}-mine"
    boxes.own_image(image)
    for version in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "mine.py").write_text(_MINE.format(version=version))
            Path(folder, "Dockerfile").write_text(
                f"FROM {IMAGE}\nUSER root\nRUN python -m pip install --no-cache-dir --quiet {_DERIVED}\n"
                "USER taskgate\nCOPY mine.py /handlers/\nENV TASKGATE_HANDLERS=mine\n"
            )
            build(image, Path(folder))
        await asyncio.to_thread(boxes.compose, "up", "--detach", "--no-build")
        await boxes.healthy()
        counts = [len(boxes.containers(service)) for service in ("gateway", "worker")]
        assert counts == [2, 3], f"`up` left {counts} gateways and workers"
        async with client(boxes) as http:
            answer = await http.post("/tasks", json={"type": "mine.has", "payload": _DERIVED})
            assert answer.status_code == 202, answer.text
            task_id = answer.json()["id"]
            await http.get(f"/tasks/{task_id}", params={"wait": 30}, timeout=60)
            result = (await http.get(f"/tasks/{task_id}/result")).json()
        assert result == [version, True], f"version {version} of the image: {result!r}"
    say("an image built FROM ours runs handlers and packages of its own, and the new ones when it is upgraded")


@contextmanager
def _running(boxes: Boxes, image: str, command: str) -> Iterator[str]:
    name = f"{boxes.project}-alone"
    settings = {
        "TASKGATE_REDIS_URL": "redis://valkey:6379/0",
        "TASKGATE_HOST": "0.0.0.0",
        "TASKGATE_API_KEY": boxes.key,
        "TASKGATE_WORKER_PROCESSES": "1",
    }
    options = [part for key, value in settings.items() for part in ("--env", f"{key}={value}")]
    network = ["--network", f"{boxes.project}_inside"]
    docker("run", "--detach", "--name", name, *network, *_BARE, *options, image, command)
    try:
        yield name
    except (AssertionError, RuntimeError):
        print(docker("logs", "--tail", "20", name, check=False))
        raise
    finally:
        docker("rm", "--force", name, check=False)


async def _healthy(name: str) -> None:
    deadline = time.monotonic() + 90
    while (said := inspect(name)["State"]["Health"]["Status"]) != "healthy":
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} is {said}: {docker('logs', '--tail', '20', name, check=False)}")
        await asyncio.sleep(0.5)

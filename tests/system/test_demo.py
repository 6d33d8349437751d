"""The demo as a newcomer runs it, without a terminal: it holds, it ends, and it leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRAY = {
    "TASKGATE_REDIS_URL": "redis://nowhere.invalid:1",
    "TASKGATE_NO_SUCH_SETTING": "1",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that every process of the demo has in its environment; none may be left at the end."""
    yield tmp_path
    left = _processes(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def _processes(place: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={place}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def _demo(place: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "taskgate.demo", "--short", "--files", str(place / "files"), *options],
        cwd=ROOT,
        env={**os.environ, **STRAY, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.timeout(240)
def test_every_expectation_holds_in_spite_of_stray_variables(place: Path) -> None:
    with _demo(place) as demo:
        output, _ = demo.communicate(timeout=220)

    assert demo.returncode == 0, output
    assert "✗" not in output
    assert output.count("✓") >= 14
    assert re.search(r"│ whole library +│ demo\.census +│ succeeded +│ +2 │", output)
    assert "workers.handlers.fail.OrderError: order 4711" in output
    assert {path.suffix for path in (place / "files").rglob("*.*")} == {".pdf", ".svg", ".png"}
    assert "\x1b" not in output
    assert not list(place.glob("taskgate-demo-*/data"))


@pytest.mark.full
def test_interrupted_at_work_it_stops_what_it_has_started(place: Path) -> None:
    with _demo(place) as demo:
        assert demo.stdout is not None
        output = [next(line for line in demo.stdout if "running" in line)]
        assert len(_processes(place)) > 6
        demo.send_signal(signal.SIGINT)
        output += demo.stdout
        demo.wait(timeout=60)

    assert demo.returncode == 128 + signal.SIGINT, "".join(output)
    assert "Stopping the service" in "".join(output)


@pytest.mark.full
def test_killed_it_takes_the_service_with_it(place: Path) -> None:
    with _demo(place) as demo:
        assert demo.stdout is not None
        next(line for line in demo.stdout if "running" in line)
        demo.kill()

    deadline = time.monotonic() + 60
    while _processes(place) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes(place)

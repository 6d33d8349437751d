"""The process around the handlers: where it finds them, whom it dies with, what is left of it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from tests.processes import open_files, state_of
from tests.workers.conftest import JOBS, WITHIN_S, Watched, until
from workers import wire
from workers.children import ChildSpec, child_environment
from workers.frames import new_mark
from workers.slot import Slot

Child = Callable[..., Watched]


async def test_handlers_are_found_where_the_service_was_started(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when that folder has names of ours: neither hides the other."""
    (tmp_path / "myjobs.py").write_text(
        "import tools\nfrom taskgate import handler\n@handler('mine')\ndef mine(payload): return tools.answer\n"
    )
    (tmp_path / "tools.py").write_text("answer = 42\n")
    for name in ("workers", "taskgate"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    watched = await child(handlers=("myjobs",)).ready()

    assert (await watched.run("mine")).result == b"42"


async def test_a_module_of_ours_hides_none_on_the_users_path(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lib" / "loadtest").mkdir(parents=True)
    (tmp_path / "lib" / "loadtest" / "__init__.py").write_text(
        "from taskgate import handler\n@handler('theirs')\ndef theirs(payload): return 'theirs'\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    watched = await child(handlers=("loadtest",)).ready()

    assert (await watched.run("theirs")).result == b'"theirs"'


_SUPERVISOR = f"""
import asyncio
from workers import wire
from workers.children import ChildProcess, ChildSpec

async def main():
    ready = asyncio.Event()
    child = ChildProcess.start(
        ChildSpec(kind="sync", handlers=({JOBS!r},)),
        on_message=lambda child, message: ready.set(),
        on_exit=lambda child, end: None,
    )
    await ready.wait()
    print(child.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_it_dies_with_its_supervisor() -> None:
    """No guard here: this is the second belt."""
    supervisor = subprocess.Popen([sys.executable, "-c", _SUPERVISOR], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout
    pid = int(supervisor.stdout.readline())

    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()

    await until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_idle_child_ends_by_itself_when_its_supervisor_hangs_up(kind: Literal["sync", "async"]) -> None:
    ours, childs = wire.pair()
    ours.setblocking(True)
    slot = Slot.create(1)
    stack_reader, stack = os.pipe()
    log = os.dup(2)
    start = wire.Start(
        spec=ChildSpec(kind=kind, handlers=(JOBS,)),
        parent=os.getpid(),
        socket=childs.fileno(),
        slot=slot.fd,
        stack=stack,
        log=log,
        mark=new_mark().decode(),
        readers=(),
        python_path=None,
        root=None,
    )
    with subprocess.Popen(
        [sys.executable, "-m", "workers.child", msgspec.json.encode(start).decode()],
        pass_fds=(start.socket, start.slot, start.stack, start.log),
    ) as process:
        childs.close()
        assert isinstance(wire.receive_message(ours), wire.Ready)

        ours.close()

        assert process.wait(20) == 0
    slot.close()
    os.close(stack)
    os.close(log)
    os.close(stack_reader)


async def test_a_dead_child_keeps_its_number_until_it_is_reaped(child: Child) -> None:
    watched = await child().ready()
    pid = watched.process.pid
    watched.process.kill()
    await watched.exited

    assert state_of(pid) == "Z"
    usage = watched.process.reap()

    assert not Path(f"/proc/{pid}").exists()
    assert usage.ru_maxrss > 10_000


async def test_nothing_is_left_of_children_that_are_gone() -> None:
    before, pids = open_files(os.getpid()), []
    for _ in range(5):
        watched = await Watched(ChildSpec(kind="sync", handlers=(JOBS,))).ready()
        pids.append(watched.process.pid)
        await watched.run("echo", "x" * 100_000)
        await watched.bury()

    assert open_files(os.getpid()) == before
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


async def test_a_stopped_child_writes_no_stack(child: Child) -> None:
    watched = await child().ready()
    os.killpg(watched.process.pid, 19)

    assert await watched.process.dumps.take(None, 0.1) == ""


async def test_stacks_asked_for_at_once_are_one(child: Child) -> None:
    watched = await child().ready()

    stacks = await asyncio.gather(*(watched.process.dumps.take(None, WITHIN_S) for _ in range(5)))

    assert len(set(stacks)) == 1
    assert stacks[0].count("Current thread") == 1


def test_the_environment_of_a_child() -> None:
    given = {"TASKGATE_API_KEY": "s", "TASKGATE_URL": "u", "DATABASE_URL": "d", "PATH": "p"}

    assert child_environment(given) == {"TASKGATE_URL": "u", "DATABASE_URL": "d", "PATH": "p"}

"""202 means on disk: what the kernel saw, in order."""

import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import eventually
from tests.system.rig import Rig

LINE = re.compile(r"^(?:\d+ +)?(\d+\.\d+) (\w+)\((.*)\) += .* <(\d+\.\d+)>$")


class Call(NamedTuple):
    name: str
    arguments: str
    began: float
    ended: float


def calls(trace: Path) -> list[Call]:
    """Finished system calls of an `strace -ttt -T`."""
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        if match := LINE.match(line):
            began = float(match[1])
            found.append(Call(match[2], match[3], began, began + float(match[4])))
    return found


class Strace:
    def __init__(self, pid: int, trace: Path) -> None:
        self.trace = trace
        strace = shutil.which("strace")
        assert strace, "strace is missing; apt-get install strace"
        names = "trace=fsync,fdatasync,write,writev,sendto,sendmsg,pwrite64"
        # One thread is enough on both sides: Valkey's fsync always and uvloop's writes are the main thread's.
        self.process = subprocess.Popen(
            [strace, "-ttt", "-T", "-s", "65536", "-e", names, "-o", str(trace), "-p", str(pid)],
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr
        assert b"attached" in self.process.stderr.readline()

    def stop(self) -> list[Call]:
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()
        return calls(self.trace)


@pytest.mark.full
async def test_the_records_fdatasync_returns_before_the_202_is_written(rig: Rig, tmp_path: Path) -> None:
    await rig.worker(TASKGATE_QUEUES="elsewhere")
    gateway = await rig.gateway()
    await rig.submit("cpu", {"ms": 0})
    assert rig.server.process
    valkey_trace = Strace(rig.server.process.pid, tmp_path / "valkey.trace")
    gateway_trace = Strace(gateway.pid, tmp_path / "gateway.trace")
    ids = [await rig.submit("cpu", {"ms": 0}) for _ in range(20)]

    async def traced() -> bool:
        """The client may have its 202 before strace has written that the gateway's call has returned."""
        return any(
            "202 Accepted" in call.arguments and ids[-1] in call.arguments for call in calls(gateway_trace.trace)
        )

    await eventually(traced, bool, within_s=60)
    on_disk, on_wire = valkey_trace.stop(), gateway_trace.stop()
    for task_id in ids:
        record = next(call for call in on_disk if call.name == "write" and f"task:{task_id}" in call.arguments)
        synced = next(call for call in on_disk if call.name in ("fdatasync", "fsync") and call.began >= record.ended)
        answer = next(call for call in on_wire if "202 Accepted" in call.arguments and task_id in call.arguments)
        assert synced.ended <= answer.began, (record, synced, answer)

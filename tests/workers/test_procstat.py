"""What the kernel says of a process, against what the process really did."""

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.procstat import Memory, OomKills, ProcStat

_BURN = """
import threading, time
def burn():
    ends_at = time.thread_time() + 0.3
    while time.thread_time() < ends_at: pass
threads = [threading.Thread(target=burn) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
held = bytearray(50_000_000)
print("done", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def burned() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen([sys.executable, "-c", _BURN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def test_cpu_time_and_memory_of_all_threads(burned: "subprocess.Popen[str]") -> None:
    stat = ProcStat(burned.pid)

    numbers = stat.sample()

    assert numbers is not None
    assert 500 < numbers.cpu_ms < 3000
    assert 50_000_000 < numbers.rss_bytes < 200_000_000
    stat.close()


def test_waiting_for_a_cpu_is_seen() -> None:
    """Several processes on one CPU: each of them waits."""
    command = ["taskset", "-c", "0", sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(3)]
    stats = [ProcStat(one.pid) for one in processes]
    try:
        deadline = time.monotonic() + 20
        waited = 0
        while waited < 300 and time.monotonic() < deadline:
            waited = sum(numbers.wait_ms or 0 for one in stats if (numbers := one.sample()))
            time.sleep(0.01)
        assert waited >= 300
    finally:
        for one, stat in zip(processes, stats, strict=True):
            one.kill()
            one.wait()
            stat.close()


def test_a_process_that_is_gone_has_no_numbers(burned: "subprocess.Popen[str]") -> None:
    stat = ProcStat(burned.pid)
    burned.kill()
    burned.wait()

    assert stat.sample() is None
    stat.close()


_THREADS = """
import threading
for _ in range(3):
    threads = [threading.Thread(target=lambda: sum(range(10**6))) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(flush=True)
    input()
"""


def test_what_ended_threads_had_waited_still_counts() -> None:
    command = ["taskset", "-c", "0", sys.executable, "-c", _THREADS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stat, seen = ProcStat(process.pid), [0]
        assert process.stdin
        assert process.stdout
        for _ in range(3):
            while not select.select([process.stdout], [], [], 0.001)[0]:
                numbers = stat.sample()
                seen.append((numbers and numbers.wait_ms) or seen[-1])
            process.stdout.readline()
            process.stdin.write("\n")
            process.stdin.flush()
        stat.close()
    assert seen == sorted(seen)
    assert seen[-1] > 0


def _proc(folder: Path, schedstat: str | None) -> Path:
    """A /proc that knows one process of number 7, which used 3 s of CPU time."""
    thread = folder / "7" / "task" / "7"
    thread.mkdir(parents=True)
    (folder / "7" / "stat").write_text("7 (a b) c) S " + " ".join(["0"] * 10 + ["200", "100"] + ["0"] * 30))
    if schedstat is not None:
        (thread / "schedstat").write_text(schedstat)
    return folder


@pytest.mark.parametrize(
    ("schedstat", "wait_ms"), [("3000000000 4000000 5\n", 4), (None, None), ("0 0 0\n", None), ("odd\n", None)]
)
def test_what_the_kernel_does_not_say_is_unknown_and_not_nothing(
    tmp_path: Path, schedstat: str | None, wait_ms: int | None
) -> None:
    stat = ProcStat(7, proc=_proc(tmp_path, schedstat))
    numbers = stat.sample()
    stat.close()
    assert numbers is not None
    assert (numbers.cpu_ms, numbers.wait_ms, numbers.runnable) == (3000, wait_ms, False)


def test_without_a_proc_nothing_is_known(tmp_path: Path) -> None:
    stat = ProcStat(7, proc=tmp_path)
    assert stat.sample() is None
    stat.close()


def test_where_nothing_was_killed_for_want_of_memory_nothing_is_told() -> None:
    assert not OomKills().recent()


_HOLD = """
import mmap, os, subprocess, sys, threading
size = 100_000_000
how = sys.argv[1]
if how == "memfd":
    held = os.memfd_create("held")
    os.write(held, bytes(size))
elif how == "mapped memfd":
    held = os.memfd_create("held")
    os.ftruncate(held, size)
    mapped = mmap.mmap(held, size)
    mapped.write(bytes(size))
elif how == "process":
    def start():
        global held
        held = subprocess.Popen([sys.executable, "-c", "b = b'x' * 100_000_000; print(flush=True); input()"],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        held.stdout.readline()
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
elif how == "deleted file":
    held = os.open("/dev/shm/taskgate-held-%d" % os.getpid(), os.O_RDWR | os.O_CREAT)
    os.unlink("/dev/shm/taskgate-held-%d" % os.getpid())
    os.write(held, bytes(size))
elif how == "memfd of a process":
    ready, told = os.pipe()
    if not os.fork():
        held = os.memfd_create("held")
        os.write(held, bytes(size))
        os.write(told, b"x")
        sys.stdin.read()
        os._exit(0)
    os.read(ready, 1)
elif how == "fork":
    held = b"x" * size
    for _ in range(3):
        if not os.fork():
            sys.stdin.read()
            os._exit(0)
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["memfd", "mapped memfd", "memfd of a process", "deleted file", "process", "fork"])
def test_memory_is_counted_wherever_it_lies_and_once(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        memory = Memory(process.pid)

        assert 100_000_000 < memory.exact() < 180_000_000
        assert memory.used() >= memory.exact()
        memory.close()

"""What the kernel says of a process, against what the process really did."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from workers.procstat import OomKills, ProcStat

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
            waited = sum(numbers.wait_ms for one in stats if (numbers := one.sample()))
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


def test_where_nothing_was_killed_for_want_of_memory_nothing_is_told() -> None:
    assert not OomKills().recent()

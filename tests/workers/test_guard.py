"""The guard: what happens to process groups when their supervisor cannot speak for them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.processes import cpu_s
from tests.workers.conftest import WITHIN_S, until
from workers import guard_client
from workers.guard_client import GuardClient
from workers.slot import boot_ns

PAUSE_S = 30.0
MS = 1_000_000


@pytest.fixture
async def guard() -> AsyncIterator[GuardClient]:
    client = GuardClient(pause_s=PAUSE_S)
    await client.start()
    yield client
    await client.close()


class Victim:
    """A process group of two that sleep: its leader, and a child of that."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sh", "-c", "sleep 3600 & exec sleep 3600"], start_new_session=True)
        deadline = time.monotonic() + 30
        while [name for name, _ in self.members()] != ["sleep", "sleep"]:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    @property
    def pid(self) -> int:
        return self.process.pid

    def states(self) -> set[str]:
        """S is not stopped (a sleeper may be on its way to sleep), T is stopped, Z is dead."""
        return {"S" if state in "RD" else state for _, state in self.members()}

    def members(self) -> list[tuple[str, str]]:
        """Name and state of every process in the group."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(rest.split()[2]) == self.pid:
                found.append((name, rest.split()[0]))
        return found

    async def until(self, *states: str, within_s: float = WITHIN_S) -> None:
        await until(lambda: self.states() == set(states), within_s=within_s)


@pytest.fixture
def victim() -> Iterator[Victim]:
    victim = Victim()
    yield victim
    try:
        os.killpg(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    victim.process.wait()


async def test_at_the_deadline_the_group_is_stopped(guard: GuardClient, victim: Victim) -> None:
    deadline = boot_ns() + 500 * MS
    guard.deadline(deadline)
    await guard.add(victim.pid)

    states = victim.states()
    while boot_ns() < deadline:  # what was read before it, whatever the machine's speed
        assert states == {"S"}
        await asyncio.sleep(0.005)
        states = victim.states()
    await victim.until("T")

    assert boot_ns() - deadline < 10_000 * MS, "10 ms are wanted; the machine of the tests may be busy"
    await until(lambda: guard.paused)


async def test_a_confirmed_lease_lets_it_go_on(guard: GuardClient, victim: Victim) -> None:
    await guard.add(victim.pid)
    guard.deadline(boot_ns())
    await victim.until("T")

    guard.deadline(boot_ns() + 3600_000 * MS)

    await victim.until("S")
    await until(lambda: not guard.paused)


async def test_a_deadline_that_moves_in_time_stops_nothing(guard: GuardClient, victim: Victim) -> None:
    in_time = False
    while not in_time:
        first = boot_ns() + 300 * MS
        guard.deadline(first)
        guard.deadline(first + 3600_000 * MS)
        await guard.add(victim.pid)  # when it answers this, it has read both
        in_time = boot_ns() < first
    await until(lambda: boot_ns() > first + 200 * MS)

    assert victim.states() == {"S"}
    assert not guard.paused


async def test_after_the_pause_it_is_killed(victim: Victim) -> None:
    guard = GuardClient(pause_s=0.3)
    await guard.start()
    await guard.add(victim.pid)
    deadline = boot_ns() + 100 * MS
    guard.deadline(deadline)

    states = victim.states()
    while boot_ns() < deadline + 300 * MS:  # what was read before it, whatever the machine's speed
        assert "Z" not in states
        await asyncio.sleep(0.005)
        states = victim.states()
    await victim.until("Z")

    await guard.close()


async def test_what_is_added_past_the_deadline_is_stopped_at_once(guard: GuardClient, victim: Victim) -> None:
    guard.deadline(boot_ns() - 1)

    await guard.add(victim.pid)

    await victim.until("T")


async def test_without_a_lease_yet_nothing_is_stopped(guard: GuardClient, victim: Victim) -> None:
    await guard.add(victim.pid)

    assert victim.states() == {"S"}
    assert not guard.paused


async def test_what_was_removed_is_left_alone(guard: GuardClient, victim: Victim) -> None:
    other = Victim()
    await guard.add(victim.pid)
    await guard.add(other.pid)

    await guard.remove(victim.pid)
    guard.deadline(boot_ns())
    await other.until("T")

    assert victim.states() == {"S"}
    os.killpg(other.pid, signal.SIGKILL)
    other.process.wait()


_SUPERVISOR = """
import asyncio, sys
from tests.workers.conftest import until
from workers.guard_client import GuardClient

async def main():
    guard = GuardClient(pause_s=30)
    await guard.start()
    for group in sys.argv[1:]:
        await guard.add(int(group))
    print(guard.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("stopped_first", [False, True])
async def test_a_dead_supervisor_takes_its_groups_with_it(victim: Victim, stopped_first: bool) -> None:
    other = Victim()
    supervisor = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, str(victim.pid), str(other.pid)], stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout
    guard_pid = int(supervisor.stdout.readline())
    if stopped_first:
        os.killpg(victim.pid, signal.SIGSTOP)

    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()

    await victim.until("Z")
    await other.until("Z")
    other.process.wait()
    await until(lambda: not Path(f"/proc/{guard_pid}").exists())


async def test_a_dead_guard_is_replaced_and_knows_all(victim: Victim) -> None:
    flips: list[bool] = []
    guard = GuardClient(pause_s=PAUSE_S, on_change=flips.append)
    await guard.start()
    await guard.add(victim.pid)
    guard.deadline(boot_ns() + 3600_000 * MS)
    first = guard.pid
    assert first

    os.kill(first, signal.SIGKILL)
    await until(lambda: flips == [True, False, True])

    assert guard.alive
    assert guard.pid != first
    guard.deadline(boot_ns())
    await victim.until("T")
    await guard.close()
    await victim.until("Z")


async def test_a_new_guard_keeps_the_old_deadline(guard: GuardClient, victim: Victim) -> None:
    await guard.add(victim.pid)
    guard.deadline(boot_ns() + 700 * MS)
    pid = guard.pid
    assert pid

    os.kill(pid, signal.SIGKILL)

    await victim.until("T")


async def test_a_guard_that_died_while_it_paused_is_made_good(guard: GuardClient, victim: Victim) -> None:
    """The new one finds the lease confirmed, and the group still stopped."""
    await guard.add(victim.pid)
    guard.deadline(boot_ns())
    await victim.until("T")
    pid = guard.pid
    assert pid

    os.kill(pid, signal.SIGKILL)
    await until(lambda: not guard.alive)
    guard.deadline(boot_ns() + 3600_000 * MS)

    await victim.until("S")


async def test_a_guard_that_does_not_answer_is_replaced(
    guard: GuardClient, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its death counts as the acknowledgement."""
    await guard.add(victim.pid)
    monkeypatch.setattr(guard_client, "_ACK_S", 1.0)
    deaf = guard.pid
    assert deaf
    os.kill(deaf, signal.SIGSTOP)

    await asyncio.wait_for(guard.remove(victim.pid), WITHIN_S)

    assert not Path(f"/proc/{deaf}").exists()
    await until(lambda: guard.alive)
    guard.deadline(boot_ns())
    await until(lambda: guard.paused)
    assert victim.states() == {"S"}, "the new one was not told of it"


async def test_closing_does_not_wait_for_a_guard_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = GuardClient(pause_s=PAUSE_S)
    await guard.start()
    monkeypatch.setattr(guard_client, "_ACK_S", 1.0)
    deaf = guard.pid
    assert deaf
    os.kill(deaf, signal.SIGSTOP)

    await asyncio.wait_for(guard.close(), WITHIN_S)

    assert not Path(f"/proc/{deaf}").exists()


async def test_adding_survives_the_death_of_a_guard(guard: GuardClient, victim: Victim) -> None:
    pid = guard.pid
    assert pid
    os.kill(pid, signal.SIGKILL)

    await asyncio.wait_for(guard.add(victim.pid), WITHIN_S)

    guard.deadline(boot_ns())
    await victim.until("T")


async def test_removing_while_no_guard_runs_returns(guard: GuardClient, victim: Victim) -> None:
    await guard.add(victim.pid)
    pid = guard.pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not guard.alive)

    await asyncio.wait_for(guard.remove(victim.pid), WITHIN_S)

    await until(lambda: guard.alive)
    guard.deadline(boot_ns())
    await until(lambda: guard.paused)
    assert victim.states() == {"S"}


async def test_many_groups_come_and_go(guard: GuardClient) -> None:
    victims = [Victim() for _ in range(20)]
    guard.deadline(boot_ns() + 3600_000 * MS)
    await asyncio.gather(*(guard.add(one.pid) for one in victims))
    await asyncio.gather(*(guard.remove(one.pid) for one in victims[::2]))

    guard.deadline(boot_ns())
    for one in victims[1::2]:
        await one.until("T")

    assert all(one.states() == {"S"} for one in victims[::2])
    for one in victims:
        os.killpg(one.pid, signal.SIGKILL)
        one.process.wait()


async def test_it_is_small_alone_and_hard_to_end(guard: GuardClient, victim: Victim) -> None:
    pid = guard.pid
    assert pid
    assert os.getsid(pid) == pid
    rss_kib = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
    assert rss_kib < 20 * 1024

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    await guard.add(victim.pid)

    assert guard.pid == pid


async def test_a_free_guard_costs_nothing(guard: GuardClient, victim: Victim) -> None:
    """Past the deadline and the kill it sleeps; a timer that is over must not spin."""
    eager = GuardClient(pause_s=0)
    await eager.start()
    await eager.add(victim.pid)
    eager.deadline(boot_ns())
    await victim.until("Z")
    pid = eager.pid
    assert pid
    before = cpu_s(pid)

    await asyncio.sleep(0.5)

    assert round((cpu_s(pid) - before) * 100) < 5
    await eager.close()


async def test_a_guard_that_hangs_is_found_by_the_next_beat(
    guard: GuardClient, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only when its supervisor freezes too, and needs it."""
    await guard.add(victim.pid)
    monkeypatch.setattr(guard_client, "_ACK_S", 1.0)
    deaf = guard.pid
    assert deaf
    os.kill(deaf, signal.SIGSTOP)

    guard.deadline(boot_ns() + 3600_000 * MS)

    await until(lambda: guard.alive and guard.pid != deaf)
    guard.deadline(boot_ns())
    await victim.until("T")

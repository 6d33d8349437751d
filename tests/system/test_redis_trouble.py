"""Redis in trouble of every kind: no accepted task is lost, no attempt counts without a run, all heals by itself."""

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import redis as sync_redis

from taskgate.contract.connection import connections
from taskgate.settings import load
from tests.conftest import eventually
from tests.processes import cpu_s, parent_of, resident_bytes
from tests.system.rig import Rig
from tests.system.running import Running, until
from tests.system.traffic import Traffic, settled

AOF = ("--appendonly", "yes", "--appendfsync", "always")
LEASE_S = 2.0
CLAIMS_WITHIN_S = 2.0
"""Of Redis being back; asserted at five times that."""

Trouble = Callable[[Rig], Awaitable[None]]


def server_pid(rig: Rig) -> int:
    assert rig.server.process is not None
    return rig.server.process.pid


async def back(rig: Rig, *options: str) -> None:
    await asyncio.to_thread(rig.server.start, *AOF, *options)


async def restart(rig: Rig) -> None:
    rig.server.stop(signal.SIGTERM)
    await back(rig)


async def killed(rig: Rig) -> None:
    rig.server.stop(signal.SIGKILL)
    await back(rig)


async def away_20_s(rig: Rig) -> None:
    rig.server.stop(signal.SIGKILL)
    await asyncio.sleep(20)
    await back(rig)


async def loading(rig: Rig, writes: int = 4000) -> None:
    """A file of so many writes, a millisecond each to load: every command is answered LOADING meanwhile."""
    async with rig.redis.pipeline(transaction=False) as pipeline:
        for number in range(writes):
            pipeline.set("ballast", number)
        await pipeline.execute()
    rig.server.stop(signal.SIGTERM)
    starting = asyncio.ensure_future(back(rig, "--key-load-delay", "1000"))
    await eventually(lambda: says_loading(rig), bool, within_s=60)
    await starting
    await rig.redis.delete("ballast")


async def says_loading(rig: Rig) -> bool:
    def ask() -> bool:
        try:
            with sync_redis.Redis.from_url(rig.server.url) as client:
                client.get("ballast")
        except sync_redis.exceptions.BusyLoadingError:
            return True
        except sync_redis.RedisError:
            return False
        return False

    return await asyncio.to_thread(ask)


async def frozen(rig: Rig) -> None:
    """It takes connections and commands, and says nothing for twice the lease."""
    os.kill(server_pid(rig), signal.SIGSTOP)
    await asyncio.sleep(2 * LEASE_S)
    os.kill(server_pid(rig), signal.SIGCONT)


async def full_memory(rig: Rig) -> None:
    await rig.redis.config_set("maxmemory", 1)
    await asyncio.sleep(4)
    await rig.redis.config_set("maxmemory", 0)


async def connections_cut(rig: Rig) -> None:
    for _ in range(20):
        for kind in ("normal", "pubsub"):
            await rig.redis.execute_command("CLIENT", "KILL", "TYPE", kind)  # type: ignore[no-untyped-call]
        await asyncio.sleep(0.1)


async def scripts_forgotten(rig: Rig) -> None:
    for _ in range(20):
        await rig.redis.script_flush()
        await asyncio.sleep(0.1)


TROUBLES = [restart, killed, away_20_s, loading, frozen, full_memory, connections_cut, scripts_forgotten]


@pytest.mark.full
@pytest.mark.timeout(200)
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
async def test_nothing_is_lost_or_burned_and_claims_go_on_at_once(
    rig: Rig, trouble: Trouble, record_property: Callable[[str, object], None]
) -> None:
    rig.settings["TASKGATE_LEASE_S"] = str(LEASE_S)
    supervisor = await rig.worker()
    gateway = await rig.gateway()
    traffic = Traffic(rig)
    traffic.start()
    await eventually(lambda: _answered(traffic), lambda answers: answers["202"] >= 40, within_s=30)
    backlog = [await rig.submit("cpu", {"ms": 100}) for _ in range(30)]
    long = [await rig.submit("sleeper", {"ms": 6000}, priority=9)]
    await rig.running(long[0], within_s=30)
    sockets = {pid: _sockets(pid) for pid in (supervisor.pid, gateway.pid)}
    memory = {pid: resident_bytes(pid) for pid in sockets}

    await trouble(rig)
    back_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    started = await eventually(lambda: _first_start(rig, back_ns), bool, within_s=30)
    assert started is not None
    took_s = (started - back_ns) / 1e9
    record_property("claims_after_s", took_s)
    before = traffic.answers["202"]
    await eventually(lambda: _answered(traffic), lambda answers: answers["202"] >= before + 20, within_s=30)
    await traffic.stop()
    await settled(rig, traffic, *long, *backlog)
    print(f"\n{trouble.__name__}: a task started {took_s:.2f} s after Redis was back; {dict(traffic.answers)}")

    assert took_s < 5 * CLAIMS_WITHIN_S
    assert traffic.live
    assert traffic.slowest_s < 5 * 5, "F20: an answer within 5 s"
    if trouble is scripts_forgotten:
        assert set(traffic.answers) == {"202"}, traffic.answers
    await eventually(lambda: _ours(rig), _within_policy, within_s=30)
    for pid, few in sockets.items():
        await eventually(lambda pid=pid: _sockets_of(pid), lambda n, few=few: n <= few + 20, within_s=60)  # type: ignore[misc]
        assert resident_bytes(pid) < memory[pid] + 24 * 1024**2


async def _answered(traffic: Traffic) -> Counter[str]:
    return traffic.answers


async def _first_start(rig: Rig, after_ns: int) -> int | None:
    return min((run.start for run in rig.runs() if run.start > after_ns), default=None)


def _sockets(pid: int) -> int:
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(each.readlink()).startswith("socket:")
    return found


async def _sockets_of(pid: int) -> int:
    return _sockets(pid)


async def _ours(rig: Rig) -> Counter[str]:
    return Counter(each["name"] for each in await rig.redis.client_list() if each["name"].startswith("taskgate-"))


def _within_policy(found: Counter[str]) -> bool:
    settings = load({})
    return len(found) == 4 and all(
        count <= connections(settings, role)
        for role in ("gateway", "supervisor", "supervisor-beat", "supervisor-claim")
        if (count := found[f"taskgate-{role}"])
    )


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_a_full_memory_lets_running_tasks_finish_and_does_not_make_anybody_busy(rig: Rig) -> None:
    """Successes, failures, retries and what is delayed end while no write of a plain command is taken."""
    supervisor = await rig.worker()
    await rig.gateway()
    kinds = [("sleeper", {"ms": 500}), ("raises", {"n": 0}), ("fails", {}), ("wait", {"ms": 300}), ("exits", {})]
    ids = [await rig.submit(kind, payload) for kind, payload in kinds for _ in range(10)]
    await rig.redis.config_set("maxmemory", 1)
    async with asyncio.timeout(120):
        ended = [await rig.ended(task_id, within_s=120) for task_id in ids]
    assert Counter(task["status"] for task in ended) == {"succeeded": 20, "failed": 30}
    refused = await rig.http.post("/tasks", json={"type": "cpu", "payload": {"ms": 1}})
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/dependency-unavailable")
    checks = (await rig.http.get("/readyz")).json()["checks"]
    assert not checks["redis"]["ok"]

    calls, used_s, begun = await _calls(rig), cpu_s(supervisor.pid), time.monotonic()
    await asyncio.sleep(3)
    used_s = cpu_s(supervisor.pid) - used_s
    took_s = time.monotonic() - begun
    calls = await _calls(rig) - calls
    assert calls < 100 * took_s, "an idle supervisor and a gateway nobody asks; scripts' own calls count"
    assert used_s < 0.5 * took_s
    await rig.redis.config_set("maxmemory", 0)

    supervisor.terminate()
    await asyncio.to_thread(supervisor.wait, 30)
    waiting = [await rig.submit("cpu", {"ms": 1}) for _ in range(5)]
    await rig.redis.config_set("maxmemory", 1)
    await rig.worker()
    assert {(await rig.ended(task_id))["status"] for task_id in waiting} == {"succeeded"}, "one that starts serves too"


async def _calls(rig: Rig) -> int:
    return int((await rig.redis.info("stats"))["total_commands_processed"])


@pytest.mark.full
@pytest.mark.timeout(150)
def test_a_disk_that_is_full_stops_valkey_and_all_heals_when_there_is_room(tmp_path: Path) -> None:
    """Files that may not grow are what a full disk is to Valkey: it exits, and again after every start."""
    running = Running(tmp_path)
    running.start()
    [valkey] = _servers(running)
    guard = parent_of(valkey)
    [appended] = (tmp_path / "taskgate-data/valkey/appendonlydir").glob("*.incr.aof")
    accepted = [running.submit(run_s=0.05) for _ in range(20)]
    accepted += [running.submit(run_s=3.0) for _ in range(2)]
    running.started(accepted[-1])
    try:
        for pid in (valkey, guard):  # the next server inherits it from the guard
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (appended.stat().st_size + 50_000, resource.RLIM_INFINITY))

        def refused() -> bool:
            answer = running.http.post("/tasks", json={"type": "step", "payload": {"run_s": 0.01}})
            assert answer.status_code in (202, 503), answer.text
            accepted.extend([answer.json()["id"]] if answer.status_code == 202 else [])
            return answer.status_code == 503

        until(refused, bool, within_s=30)
        until(lambda: running.http.get("/readyz").status_code, lambda status: status == 503)
        assert running.http.get("/livez").status_code == 200
        until(lambda: valkey in running.left(), lambda there: not there)
        for pid in [guard, *_servers(running)]:
            with contextlib.suppress(ProcessLookupError):  # a server that has just exited again
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(lambda: running.http.get("/readyz").status_code, lambda status: status == 200, within_s=60)
        ends = [running.wait_for(task_id, "succeeded", "failed") for task_id in [*accepted, running.submit(run_s=0.01)]]
        assert {(task["status"], task["attempt"]) for task in ends} == {("succeeded", 1)}
        starts = Counter(task_id for word, task_id, _, _ in running.runs() if word == "start")
        assert set(starts.values()) == {1}
        assert running.stop() == 0
    finally:
        running.clean_up()


def _servers(running: Running) -> list[int]:
    found = []
    for pid in running.left():
        with contextlib.suppress(OSError):
            found += [pid] * (Path(f"/proc/{pid}/comm").read_text().strip() == "valkey-server")
    return found

"""F21, memory full, eviction: what was taken off the queue ends all the same; a policy that drops keys is told."""

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import eventually
from tests.system.rig import Rig
from tests.system.traffic import Traffic, settled

LEASE_S = 2.0


@pytest.mark.full
@pytest.mark.timeout(240)
async def test_f21_jobs_that_end_while_memory_is_full_are_recorded(rig: Rig) -> None:
    rig.settings["TASKGATE_LEASE_S"] = str(LEASE_S)
    await rig.worker()
    await rig.gateway()
    traffic = Traffic(rig)
    ids = [await rig.submit("sleeper" if n % 5 else "raises", {"ms": 500, "n": 0}) for n in range(50)]
    before = await rig.redis.dbsize()
    used = int((await rig.redis.info("memory"))["used_memory"])
    await rig.redis.config_set("maxmemory", used + 4096)
    traffic.start()

    async def refusals() -> int:
        return traffic.answers["503"]

    await eventually(refusals, bool, within_s=30)
    ended = [await rig.ended(task_id, within_s=90) for task_id in ids]
    assert Counter(task["status"] for task in ended) == {"succeeded": 40, "failed": 10}
    await eventually(refusals, lambda count: count >= 20, within_s=30)
    await rig.redis.config_set("maxmemory", 0)

    accepted = len(traffic.accepted)

    async def recovered() -> bool:
        return len(traffic.accepted) > accepted

    await eventually(recovered, bool, within_s=30)
    await traffic.stop()
    await settled(rig, traffic, *ids)
    assert traffic.live
    assert await rig.redis.dbsize() > before


@pytest.mark.parametrize("command", ["gateway", "worker"])
async def test_f21_a_policy_that_evicts_is_told_in_log_and_health_and_refused_in_strict_mode(
    rig: Rig, command: str
) -> None:
    await rig.redis.config_set("maxmemory-policy", "allkeys-lru")
    strict = await asyncio.to_thread(_run, rig, command, TASKGATE_STRICT="true")
    assert strict.returncode == 2
    assert strict.stderr.splitlines()[-1].startswith("taskgate: eviction policy: allkeys-lru; ")

    process = rig.spawn(command)
    told = await eventually(lambda: _warnings(rig.folder / f"{command}.log"), bool, within_s=60)
    assert [each["check"] for each in told] == ["eviction policy"]
    assert "noeviction" in told[0]["advice"]
    if command == "gateway":

        async def durability() -> str:
            try:
                return str((await rig.http.get("/readyz")).json()["checks"]["durability"]["detail"])
            except (httpx.TransportError, KeyError):
                return ""

        await eventually(durability, lambda detail: "keys may be evicted" in detail, within_s=60)
    process.send_signal(signal.SIGTERM)


def _run(rig: Rig, command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "taskgate", command],
        env=rig.environment(**settings),
        cwd=rig.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def _warnings(log: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().split("\n")[:-1]]  # the last one may not be whole yet
    return [line for line in lines if line["level"] == "warning" and "check" in line]

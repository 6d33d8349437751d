"""F20, restart: LOADING, lost scripts, green health. It heals by itself and says meanwhile what it cannot do."""

import asyncio
import time

import pytest

from tests.conftest import eventually
from tests.system.rig import Rig
from tests.system.test_redis_trouble import loading, says_loading
from tests.system.traffic import Traffic, settled, stream

IN_FLIGHT = 200


@pytest.mark.full
@pytest.mark.timeout(240)
async def test_f20_scripts_forgotten_then_a_restart_that_loads_for_long(rig: Rig) -> None:
    rig.settings["TASKGATE_LEASE_S"] = "2"
    await rig.worker()
    await rig.gateway()
    traffic = Traffic(rig)
    await asyncio.gather(*(traffic.submit("cpu", {"ms": 100}) for _ in range(IN_FLIGHT)))
    watched = await rig.submit("sleeper", {"ms": 6000}, priority=9)
    following = asyncio.ensure_future(stream(rig, watched))
    await rig.running(watched, within_s=30)

    traffic.start()
    for _ in range(10):
        await rig.redis.script_flush()
        await asyncio.sleep(0.1)
    assert set(traffic.answers) == {"202"}, "after SCRIPT FLUSH no request fails"

    trouble = asyncio.ensure_future(loading(rig, 10_000))
    await eventually(lambda: says_loading(rig), bool, within_s=60)
    ready = await rig.http.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["redis"]["ok"]) == (503, False)
    refused = await traffic.submit("cpu", {"ms": 1})
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/dependency-unavailable")
    await trouble
    back_s = time.monotonic()

    async def works() -> bool:
        accepted = (await traffic.submit("cpu", {"ms": 1})).status_code == 202
        return accepted and (await rig.http.get("/readyz")).status_code == 200

    await eventually(works, bool, within_s=50)
    healed_s = time.monotonic() - back_s
    await traffic.stop()
    names = await asyncio.wait_for(following, 60)
    await settled(rig, traffic, watched)

    assert traffic.live
    assert traffic.slowest_s < 5 * 5
    assert healed_s < 5 * 10
    assert names[-1] == "end"
    assert "snapshot" in names

"""F11: a gateway with open streams stops at once, says nothing false, and its clients miss nothing elsewhere."""

import asyncio
import socket
import subprocess
import time

import pytest

from tests.api.sse_client import Connected, Resuming
from tests.conftest import eventually
from tests.system.rig import Rig

STREAMS = 50

pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]


async def stopped(gateway: subprocess.Popen[bytes]) -> int:
    async def code() -> int | None:
        return gateway.poll()

    found = await eventually(code, lambda code: code is not None, within_s=25)
    assert found is not None
    return found


async def followed(rig: Rig, ids: list[str], count: int) -> list[tuple[Resuming, Connected]]:
    """That many streams, each with its snapshot."""
    found = []
    for n in range(count):
        stream = Resuming(rig.url, f"/tasks/{ids[n % len(ids)]}/events")
        connected = await stream.connect()
        await connected.read(blocks=1, idle_s=30)
        found.append((stream, connected))
    return found


@pytest.mark.parametrize("signals", [1, 2])
async def test_f11_sigterm_with_open_streams_and_one_that_nobody_reads(rig: Rig, signals: int) -> None:
    rig.settings |= {"TASKGATE_HANDLERS": "tests.field.streaming_jobs", "TASKGATE_WORKER_PROCESSES": "4"}
    await rig.worker()
    gateway = await rig.gateway()
    go = rig.folder / "go"
    ids = [await rig.submit("patient", str(go)) for _ in range(3)]
    ids.append(await rig.submit("chatty", {"events": 1_200, "until": str(go)}))
    for task_id in ids:
        await rig.running(task_id, within_s=60)
    streams = await followed(rig, ids, STREAMS)
    with socket.create_connection(("127.0.0.1", rig.port)) as deaf:
        deaf.sendall(f"GET /tasks/{ids[-1]}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        reading = asyncio.gather(*(connected.read(idle_s=30) for _, connected in streams))
        told = time.monotonic()
        for _ in range(signals):
            gateway.terminate()
        assert await stopped(gateway) == 0
        assert time.monotonic() - told < 20, "5 s, and slack for a busy machine"
        await reading
    for stream, connected in streams:
        connected.reset()
        assert "end" not in [block.name for block in stream.blocks]
        assert signals == 2 or connected.ended, "a clean end, not a broken connection"

    go.touch()
    port = await rig.another_gateway()
    for stream, _ in streams:
        while stream.blocks[-1].name != "end":
            elsewhere = Resuming(f"http://127.0.0.1:{port}", f"/tasks/{stream.blocks[0].data['id']}/events")
            elsewhere.last_id, elsewhere.blocks = stream.last_id, stream.blocks
            await elsewhere.read(idle_s=20)
            stream.last_id = elsewhere.last_id
        emitted = [block.data["data"]["n"] for block in stream.blocks if block.name == "custom"]
        lost = sum(block.data.get("lost", 0) for block in stream.blocks if block.name == "gap")
        assert emitted == sorted(set(emitted)), "none twice"
        if stream.blocks[0].data["id"] == ids[-1] and "gap" not in [block.name for block in stream.blocks]:
            assert len(emitted) + lost == 1_200

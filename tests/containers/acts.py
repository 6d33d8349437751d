"""What is done to the service in its containers, and what has to come of it."""

import asyncio
import collections
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.containers.boxes import HERE, ROOT, Boxes, inspect
from tests.containers.users import Users, client

Say = Callable[[str], None]
_KILLED = ("worker", "gateway", "nginx", "valkey")
_FRESH_S = 1.0
_BUSY = 2.0
"""Load per CPU."""


async def locked(boxes: Boxes, say: Say) -> None:
    """Nobody gets in without the key; nothing but nginx is published, and everything is as bare as it can be."""
    async with client(boxes) as http:
        without = await http.get("/tasks", headers={"Authorization": ""})
        assert without.status_code == 401, f"without a key: {without.status_code}"
        assert (await http.get("/tasks")).status_code == 200
    published = {}
    for container in boxes.containers():
        found = inspect(container)
        name, host = found["Name"], found["HostConfig"]
        published[name] = [bind["HostIp"] for binds in (host["PortBindings"] or {}).values() for bind in binds]
        assert host["ReadonlyRootfs"], f"{name}: its root can be written"
        assert host["CapDrop"] == ["ALL"], f"{name}: keeps capabilities"
        assert "no-new-privileges:true" in host["SecurityOpt"], f"{name}: may gain privileges"
        assert host["Memory"] or "setup" in name, f"{name}: no memory limit"
    binds = [bind for each in published.values() for bind in each]
    assert binds == ["127.0.0.1"], f"published: {published}"
    say("401 without the key; only nginx is published, on loopback; roots are read-only, capabilities dropped")


async def demo(boxes: Boxes, say: Say) -> None:
    """The demo's client, through nginx with TLS."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "taskgate.demo", "--plain", "--url", boxes.url),
        cwd=ROOT,
        env=os.environ | {"SSL_CERT_FILE": str(boxes.certificate), "TASKGATE_API_KEY": boxes.key},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, f"the demo: {said[-3000:]}"
    assert "burst gets 429s" in said, "the demo had no burst"
    say(f"the demo passes through nginx with TLS: {said.count('✓')} of its expectations")


async def stream(boxes: Boxes, say: Say, *, seconds: float) -> None:
    """One connection that lives as long as its task; all that it emits comes, and young."""
    ages: list[float] = []
    end = ""
    async with client(boxes) as http:
        answer = await http.post("/tasks", json={"type": "boxed.ticks", "payload": seconds})
        assert answer.status_code == 202, answer.text
        path, started = f"/tasks/{answer.json()['id']}/events", time.monotonic()
        async with http.stream("GET", path, timeout=httpx.Timeout(15, read=60)) as source:
            async for line in source.aiter_lines():
                if tick := re.search(r'^data:.*"at":([0-9.]+)', line):
                    ages.append(time.time() - float(tick[1]))
                end = end or (re.search(r'"status":"(succeeded|failed|canceled)"', line) or [""])[0]
        lived = time.monotonic() - started
        ticks = (await http.get(f"{path.removesuffix('/events')}/result")).json()
    assert "succeeded" in end, f"the stream ended after {lived:.0f} s without its end"
    assert lived >= seconds, f"the stream ended after {lived:.1f} of {seconds} s"
    assert len(ages) == ticks > 0, f"{len(ages)} of {ticks} events came"
    age_s, young = sorted(ages), sum(age < _FRESH_S for age in ages) / len(ages)
    figures = f"p50 {statistics.median(ages):.3f}, p99 {age_s[len(ages) * 99 // 100]:.3f}, max {age_s[-1]:.3f} s"
    # Where several times as much wants to run as there are CPUs, everything is late, and not by us.
    busy = os.getloadavg()[1] / len(os.sched_getaffinity(0))
    wanted = 0.99 if busy < _BUSY else 0.5
    assert young >= wanted, f"{young:.1%} of {len(ages)} events were younger than {_FRESH_S} s: {figures}"
    figures += f", {young:.1%} below {_FRESH_S} s, load {busy:.1f} per CPU"
    say(f"one stream lived for {lived:.0f} s, all {len(ages)} events; their age: {figures}")


async def killed(boxes: Boxes, say: Say) -> None:
    """One container of each service after the other, under load."""
    async with Users(boxes) as users:
        for service in _KILLED:
            await users.goes_on()
            back_s = await boxes.kill(service)
            accepted_s = await users.goes_on()
            await boxes.healthy()
            say(f"{service} killed: runs again after {back_s:.1f} s, 20 more were accepted after {accepted_s:.1f} s")
    _judge(boxes, users, say, "killing one container of each service")


async def stopped(boxes: Boxes, say: Say) -> None:
    """`docker-compose stop` under load, and start again."""
    async with Users(boxes) as users:
        await users.goes_on()
        started = time.monotonic()
        await asyncio.to_thread(boxes.compose, "stop")
        took_s = time.monotonic() - started
        codes = {inspect(one)["Name"]: inspect(one)["State"]["ExitCode"] for one in boxes.containers()}
        assert not any(codes.values()), f"exit codes: {codes}"
        await asyncio.to_thread(boxes.compose, "start")
        accepted_s = await users.goes_on()
        await boxes.healthy()
    say(f"docker-compose stop took {took_s:.1f} s, all exit codes 0; after start 20 more in {accepted_s:.1f} s")
    _judge(boxes, users, say, "docker-compose stop and start")


async def restored(boxes: Boxes, say: Say) -> None:
    """Backup and restore as docs/operations.md says: what was there comes back, what came after it is unknown."""
    async with client(boxes) as http:

        async def submit() -> str:
            answer = await http.post("/tasks", json={"type": "boxed.work", "payload": 0, "queue": "later"})
            assert answer.status_code == 202, answer.text
            return f"/tasks/{answer.json()['id']}"

        before = [await submit() for _ in range(20)]
        with tempfile.TemporaryDirectory() as folder:
            await asyncio.to_thread(boxes.follow, "operations.md", "docker cp", BACKUP=f"{folder}/backup")
            after = await submit()
            await asyncio.to_thread(boxes.follow, "operations.md", "$BACKUP:/backup")
        await boxes.healthy()
        waiting = [(await http.get(path)).json().get("status") for path in before]
        assert waiting == ["queued"] * len(before), f"after the restore: {waiting}"
        assert (await http.get(after)).status_code == 404, "what came after the backup is there"
    say(f"backup and restore as docs/operations.md says: {len(before)} waiting tasks came back, a later one is unknown")


async def replaced(boxes: Boxes, say: Say) -> None:
    """Another API key is refused by `up`, and replaces the old one everywhere by the commands of the page."""
    old = boxes.key
    boxes.environment["TASKGATE_API_KEY"] = "another-key-of-more-than-24-characters"
    try:
        await asyncio.to_thread(boxes.compose, "up", "--detach", "--no-build")
    except RuntimeError:
        boxes.read_key()
    assert boxes.key == old, "`up` replaced the key, or took another one without a word"
    await asyncio.to_thread(boxes.follow, "containers.md", "setup replace")
    await boxes.healthy()
    boxes.read_key()
    assert boxes.key == boxes.environment.pop("TASKGATE_API_KEY")
    for key, wanted in ((old, 401), (boxes.key, 200)):
        async with client(boxes) as http:
            header = {"Authorization": f"Bearer {key}"}
            codes = {(await http.get("/tasks", headers=header)).status_code for _ in range(20)}
        assert codes == {wanted}, f"gateways disagree about a key: {codes}"
    say("another key is refused by `up`; the commands of the page replace it at all gateways")


def _judge(boxes: Boxes, users: Users, say: Say, what: str) -> None:
    """Every 202 has exactly one end."""
    assert not users.broken, f"{what}: {users.broken[:5]}"
    ids = list(users.accepted.values())
    assert len(set(ids)) == len(ids), f"{what}: {len(ids)} accepted under {len(set(ids))} ids"
    said = boxes.compose(
        "exec", "-T", "gateway", "python", "-c", Path(HERE / "ends.py").read_text(), given="\n".join(ids)
    )
    found = [json.loads(line) for line in said.splitlines()]
    assert len(found) == len(ids), f"{what}: asked for {len(ids)} tasks, found {len(found)}"
    wrong = [one for one in found if one[1] != "succeeded" or one[2] != ["succeeded"]]
    assert not wrong, f"{what}: {len(wrong)} of {len(found)} tasks have not one end: {wrong[:5]}"
    attempts = collections.Counter(one[3] for one in found)
    refused = ", ".join(f"{number} × {kind}" for kind, number in sorted(users.refused.items())) or "nothing refused"
    say(f"{what} lost nothing: {len(found)} accepted, each ended once; attempts {dict(attempts)}; {refused}")

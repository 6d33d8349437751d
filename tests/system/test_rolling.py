"""A rolling restart under load: what was submitted ends, and no attempt is burned by it."""

import asyncio
import contextlib
import random
import secrets
import signal
import subprocess
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.conftest import eventually
from tests.system.rig import FINAL, Rig, overlaps

GRACE_S = 3.0
SLACK_S = 60.0
"""What a loaded machine may add."""
OPEN = 20
LONG = (pytest.mark.full, pytest.mark.timeout(900))


class Load:
    """Keeps OPEN tasks in the service until stopped; some of them run longer than a drain lets them."""

    def __init__(self, rig: Rig) -> None:
        self.ids: list[str] = []
        self._rig = rig
        self._stopping = False
        self._users = [asyncio.ensure_future(self._user(n)) for n in range(OPEN)]

    async def stop(self) -> None:
        """Returns when everything that was submitted has ended."""
        self._stopping = True
        await asyncio.gather(*self._users)

    async def _user(self, number: int) -> None:
        while not self._stopping:
            task_type = "sleeper" if number % 10 == 0 else random.choice(["cpu", "sleeper", "wait", "wait"])
            longest_ms = 2000 if number % 10 == 0 else 200
            task_id = await self._submit(task_type, {"ms": random.randint(10, longest_ms)})
            self.ids.append(task_id)
            await eventually(lambda one=task_id: self._record(one), _is_final, within_s=300, every_s=0.1)  # type: ignore[misc]

    async def _submit(self, task_type: str, payload: dict[str, int]) -> str:
        """A kept-alive connection may be closed just as it is used: asked again under the same key."""
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = await self._rig.http.post(
                    "/tasks", json={"type": task_type, "payload": payload}, headers=headers
                )
                if answer.status_code == 202:
                    return str(answer.json()["id"])
                assert answer.status_code in (429, 503), answer.text
            await asyncio.sleep(0.2)

    async def _record(self, task_id: str) -> Any:
        [record] = await self._rig.store.read([task_id])
        return record


def _is_final(record: Any) -> bool:
    return record is not None and record.status in FINAL


async def left(old: subprocess.Popen[bytes]) -> None:
    """It leaves in order, within its grace."""

    async def code() -> int | None:
        return old.poll()

    assert await eventually(code, lambda code: code is not None, within_s=GRACE_S + SLACK_S) == 0


@pytest.mark.parametrize("rounds", [pytest.param(2, marks=pytest.mark.timeout(300)), pytest.param(50, marks=LONG)])
async def test_a_rolling_restart_under_load_ends_every_task_in_its_first_attempt(rig: Rig, rounds: int) -> None:
    """Each supervisor in turn is asked to leave while its successor starts; the other one stays."""
    rig.settings |= {"TASKGATE_GRACE_S": str(GRACE_S), "TASKGATE_WORKER_PROCESSES": "1"}
    pair = [await rig.worker(), await rig.worker()]
    await rig.gateway()
    load = Load(rig)
    for _ in range(rounds):
        leaving = list(pair)
        for place, old in enumerate(leaving):
            old.send_signal(signal.SIGTERM)
            pair[place] = await rig.worker()
        await asyncio.gather(*map(left, leaving))
    await load.stop()

    records = [record for n in range(0, len(load.ids), 200) for record in await rig.store.read(load.ids[n : n + 200])]
    assert Counter((str(record.status), record.attempt) for record in records if record) == {
        ("succeeded", 1): len(load.ids)
    }
    runs = rig.runs()
    assert overlaps(runs, {}) == []
    assert {run.task_id for run in runs if run.end} == set(load.ids)
    assert not {name for name in await rig.store.usage(0) if name.startswith(("waiting:", "running:"))}

"""Whether this process can keep its promises now: a real write, durability, somebody to do the work."""

import asyncio
from typing import Any

import msgspec

from taskgate.checks import Check
from taskgate.contract.connection import DURABILITY_SETTINGS, durability
from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.models import WorkerInfo
from taskgate.contract.store import Store
from taskgate.embedded import Embedded
from taskgate.settings import Settings
from taskgate.vitals import Vitals

WITHIN_S = 0.5
LATE_S = 2.0
"""An event loop that came so late to what was due had no CPU, or something blocks it: others answer sooner."""


class Readiness:
    """What `GET /readyz` looks at; nothing is remembered between two looks."""

    draining = False

    def __init__(self, store: Store, settings: Settings, vitals: Vitals) -> None:
        self._store = store
        self._vitals = vitals
        self._strict = settings.strict
        url = settings.redis_url.get_secret_value() if settings.redis_url else ""
        self._embedded = url.startswith("unix:") and url == Embedded(settings.data_dir).url

    async def checks(self) -> dict[str, Check]:
        own = {
            "serving": Check(not self.draining, "draining" if self.draining else "accepting"),
            "loop": Check(self._vitals.lag_s < LATE_S, f"{self._vitals.lag_s * 1000:.0f} ms late"),
        }
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._store.probe()
                redis = Check(True, "written")
                return {
                    **own,
                    "redis": redis,
                    "durability": await self._durability(),
                    "workers": await self._workers(),
                }
        except (StoreUnavailable, OutcomeUnknown):
            return {**own, "redis": Check(False, "cannot be written to")}
        except TimeoutError:
            return {**own, "redis": Check(False, f"no answer within {WITHIN_S} s")}

    async def _durability(self) -> Check:
        found = durability(await self._store.server_config(*DURABILITY_SETTINGS))
        must = self._strict or self._embedded
        detail = f"fsync {found.level}"
        if found.evicts:
            return Check(not must, f"{detail}; keys may be evicted (maxmemory-policy)")
        return Check(found.level == "always" or not must, detail)

    async def _workers(self) -> Check:
        now_ms = await self._store.now_ms()
        alive = [worker for worker in await self._store.workers() if is_alive(worker, now_ms)]
        if not alive:
            return Check(False, "no supervisor has beaten within its lease")
        if not any(worker.types for worker in alive):
            return Check(False, "no supervisor has published its task types yet")  # every submission would be a 503
        return Check(True, f"{len(alive)} alive, {sum(map(is_whole, alive))} whole")


def is_alive(worker: WorkerInfo, now_ms: int) -> bool:
    return now_ms - worker.beat_ms <= worker.lease_ms


def is_whole(worker: WorkerInfo) -> bool:
    """All its children are there, and the guard is."""
    there = [child for child in worker.children if child.get("state") not in ("starting", "dead")]
    return worker.state == "ready" and worker.guard == "ok" and len(there) >= worker.wanted_children


def view(worker: WorkerInfo, now_ms: int, *, with_tasks: bool = True) -> dict[str, Any]:
    """A supervisor as `GET /workers` shows it. `with_tasks`: whose they are is not told, so not to everybody."""
    alive = is_alive(worker, now_ms)
    shown = {**msgspec.structs.asdict(worker), "alive": alive, "whole": alive and is_whole(worker)}
    if not with_tasks:
        shown["children"] = [
            {name: value for name, value in child.items() if name != "tasks"} for child in worker.children
        ]
    return shown

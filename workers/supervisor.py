"""The supervisor: one per host, owns all Redis I/O of its children, runs no user code."""

import asyncio
import gc
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import structlog
import uvloop

from taskgate import tracing
from taskgate.checks import Check
from taskgate.contract import keys, logs
from taskgate.contract.connection import connect
from taskgate.contract.errors import OutcomeUnknown, StoreUnavailable
from taskgate.contract.ids import new_worker_id
from taskgate.contract.models import BeatAnswer, BeatValue, Held, Served, TypeInfo, WorkerInfo
from taskgate.contract.shares import OTHERS, Share, shares
from taskgate.contract.store import Store
from taskgate.doctor import look_at_redis
from taskgate.footprint import shortage
from taskgate.platform import adopt_orphans, memory_bytes
from taskgate.policy import TenantPolicy
from taskgate.settings import Settings
from workers.agenda import Agenda
from workers.background import Background
from workers.claims import FRESH, Claims
from workers.guard_client import GuardClient
from workers.heart import Heart
from workers.inbox import Inbox
from workers.lease import Lease
from workers.metrics import Metrics
from workers.outbox import Outbox
from workers.port import Port
from workers.runner import Runner
from workers.slot import boot_ns
from workers.unserved import Unserved

log = structlog.get_logger()

GC_THRESHOLD = 20_000
"""Everything here is freed by reference counts; cycles come from rare events only."""
LEAVE_S = 1.0
"""Kept of the grace for hand-backs and goodbye."""


class Supervisor:
    """Built from its parts, `run` until a signal asks it to stop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.id = new_worker_id()
        self._started_ms = int(time.time() * 1000)
        self._state = "starting"
        self._clients = [connect(settings, role) for role in ("supervisor", "supervisor-beat", "supervisor-claim")]
        self._store, beating, blocking = (self._store_on(client) for client in self._clients)
        self._guard = GuardClient(pause_s=settings.pause_s, on_change=self._guard_changed)
        self._lease = Lease(settings.lease_s, self._guard)
        self._outbox = Outbox(self._store, self.id, self._lease)
        self._agenda = Agenda(self._store, self._lease)
        self._traces = tracing.start("worker")
        self._metrics = Metrics()
        self._runner = Runner(
            settings,
            self._store,
            self._outbox,
            self._lease,
            self._guard,
            worker_id=self.id,
            now_ms=self._agenda.now_ms,
            on_room=self._on_room,
            on_types=self._on_types,
            traces=self._traces,
            metrics=self._metrics,
        )
        tenants = _shares(settings)
        self._claims = Claims(
            self._store,
            blocking,
            self._lease,
            worker_id=self.id,
            lease_ms=settings.lease_ms,
            room=self._runner.room,
            take=self._runner.handover.take,
            fresh_waits=self._runner.fresh_waits,
            shares=tenants,
        )
        self._unserved = Unserved(
            self._store,
            self._lease,
            worker_id=self.id,
            after_s=settings.unknown_type_after_s,
            served=lambda: self._served,
            metrics=self._metrics,
        )
        self._heart = Heart(
            beating,
            self._lease,
            self,
            worker_id=self.id,
            lease_s=settings.lease_s,
            shares=tenants,
            metrics=self._metrics,
        )
        wants_port = settings.worker_health_port is not None
        self._port = Port(settings, checks=self._checks, metrics=self._told_metrics) if wants_port else None
        self._lease.on_silent = self._heart.now
        self._inbox = Inbox(
            self._clients[0],
            [name for p in self._store.partitions for name in (keys.inbox(p, self.id), keys.notices(p))],
            self._told,
        )
        self._unnamed: dict[int, dict[str, int]] = {}
        """By partition: ids and epochs that the last beat called ours and we do not hold."""
        self._served: list[Served] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._announced = False
        self._published: list[str] = []
        """Types whose schemas are in Redis: a gateway that sees them here finds them there."""
        self._memory_checked = False
        self._refused = False
        self._background = Background()

    def _store_on(self, client: Any) -> Store:
        settings = self._settings
        return Store(
            client,
            partitions=settings.partitions,
            retention_ms=settings.retention_s * 1000,
            dead_retention_ms=settings.dead_retention_s * 1000,
            retention_bytes=int(settings.retention_bytes),
        )

    async def run(self) -> int:
        """Work until SIGTERM or SIGINT; the exit code."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._asked_to_stop)
        log.info("supervisor starts", worker_id=self.id, pid=os.getpid(), lease_s=self._settings.lease_s)
        adopt_orphans()
        await self._guard.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        work = [
            self._heart.run(),
            self._claims.run(),
            self._claims.listen(),
            self._agenda.run(),
            self._unserved.run(),
            self._inbox.run(),
            self._runner.telemetry.run(),
            self._metrics.vitals.run(),
            *([] if self._port is None else [self._port.run()]),
        ]
        parts = [asyncio.ensure_future(each) for each in work]
        for pool in self._runner.pools.values():
            pool.fill()
        stop = asyncio.ensure_future(self._stop.wait())
        broken, _ = await asyncio.wait([stop, *parts], return_when=asyncio.FIRST_COMPLETED)
        failed = [part for part in broken if part is not stop]
        for part in failed:
            log.error("a part of the supervisor failed", error=repr(part.exception()), exc_info=part.exception())
        await self._drain()
        for part in parts:
            part.cancel()
        await asyncio.gather(stop, *parts, return_exceptions=True) if not failed else None
        await self._guard.close()
        for client in self._clients:
            await client.aclose()
        if self._traces is not None:
            self._traces.close()
        log.info("supervisor stopped", worker_id=self.id)
        return 1 if failed or self._refused else 0

    def _asked_to_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def _drain(self) -> None:
        """No more claims, keep beating; soft signal, kill, hand back: all within the grace."""
        grace_s = self._settings.grace_s
        leave_s, soft_s = min(LEAVE_S, grace_s / 5), self._settings.soft_stop_s
        begun = time.monotonic()
        log.info("draining", worker_id=self.id, tasks=len(self._runner.holdings), grace_s=grace_s)
        self._state = "draining"
        self._claims.stopped = True
        self._runner.take_back_unread()
        self._heart.now()
        await self._until_empty(grace_s - soft_s - (time.monotonic() - begun), hurry=True)
        left_s = min(grace_s - leave_s - (time.monotonic() - begun), 1.0 if self._hurry.is_set() else soft_s)
        self._runner.drain(round(left_s, 3))
        await self._until_empty(left_s)
        self._runner.kill_all()
        await self._until_empty(leave_s / 2)
        for pool in self._runner.pools.values():
            await pool.stop()
        await self._until_empty(leave_s / 2)
        await self._goodbye()

    async def _until_empty(self, seconds: float, *, hurry: bool = False) -> None:
        deadline = time.monotonic() + seconds
        # Holdings end in many places and a signal or the time may end the wait: looking is simpler than being told.
        while len(self._runner.holdings) and time.monotonic() < deadline and not (hurry and self._hurry.is_set()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _goodbye(self) -> None:
        try:
            for partition in self._store.partitions:
                await self._store.goodbye(partition, self.id)
        except (StoreUnavailable, OutcomeUnknown) as error:
            log.warning("could not say goodbye; the others will notice", error=str(error))

    @property
    def served(self) -> Sequence[Served]:
        return self._served

    def names(self, partition: int) -> Sequence[Held]:
        return self._runner.holdings.names(partition)

    def describe(self) -> WorkerInfo:
        """What this supervisor says of itself at every beat."""
        runner = self._runner
        run_ms = runner.ends.run_times.typical_ms()
        return WorkerInfo(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=self._started_ms,
            lease_ms=self._settings.lease_ms,
            queues=sorted({each.queue for each in self._served}),
            types=self._published,
            state=self._state,
            children=[
                {
                    "pid": child.pid,
                    "kind": pool.spec.pool,
                    "state": "starting" if not child.ready else "busy" if child.load else "idle",
                    "tasks": [h.id for seq in child.outstanding if (h := runner.holdings.of(child, seq))],
                }
                for pool in runner.pools.values()
                for child in pool.children
            ],
            wanted_children=sum(pool.size for pool in runner.pools.values()),
            guard="ok" if self._guard.alive else "down",
            stale_writes=runner.ends.stale_writes,
            run_ms=run_ms,
            slots={name: slots for name in run_ms if (slots := runner.slots(name))},
            left_behind=dict(sum((pool.left_behind for pool in runner.pools.values()), Counter())),
        )

    @property
    def _missing(self) -> str:
        """What keeps it from claiming what there is room for; "": nothing."""
        if self._state == "draining":
            return self._state
        if not self._served or self._state != "ready":
            return "no task types yet"
        if not self._guard.alive:
            return "the guard is down"
        if not self._lease.holds:
            return "the lease does not hold"
        return "" if self._lease.contact.is_set() else "Redis does not answer"

    def _checks(self) -> dict[str, Check]:
        """What `GET /readyz` of its own port looks at."""
        pools = self._runner.pools.values()
        ready = sum(child.ready and child.exit is None for pool in pools for child in pool.children)
        age_s = time.monotonic() - self._heart.answered_s
        return {
            "consuming": Check(not (missing := self._missing), missing or self._state),
            "beat": Check(self._lease.holds, f"answered {age_s:.1f} s ago; lease {self._settings.lease_s:g} s"),
            "guard": Check(self._guard.alive, "alive" if self._guard.alive else "down"),
            "children": Check(ready > 0, f"{ready} ready, {sum(pool.size for pool in pools)} wanted"),
        }

    def _told_metrics(self) -> bytes:
        return self._metrics.text(
            self._runner,
            consuming=not self._missing,
            guard=self._guard.alive,
            lease_s=(self._lease.deadline_ns - boot_ns()) / 1e9,
            beat_age_s=time.monotonic() - self._heart.answered_s,
        )

    def heard(self, partition: int, answer: BeatAnswer) -> None:
        """The answer to a beat."""
        self._agenda.clock_is(answer.now_ms)
        self._agenda.next_due(partition, answer.next_due_ms)
        for held in answer.lost:
            self._runner.lost(held.task_id, held.epoch)
        for task_id in answer.canceling:
            self._runner.cancel(task_id)
        self._doubt(partition, answer.unknown)
        self._runner.suspects_wait(answer.suspects)
        self._runner.sweep()
        if answer.claimable:
            self._claims.try_now()
        if not self._announced:
            self._on_types()

    def _doubt(self, partition: int, unknown: Sequence[Held]) -> None:
        """Ours, but not named: the second time in a row it is handed back, unless its claim arrived meanwhile."""
        missing = {each.task_id: each.epoch for each in unknown if not self._holds(each)}
        before = self._unnamed.get(partition, {})
        for task_id, epoch in missing.items():
            if before.get(task_id) == epoch:
                log.warning("a claim's reply was lost, handing back", task_id=task_id, worker_id=self.id)
                self._runner.ends.hand_back_unknown(partition, task_id, epoch)
        self._unnamed[partition] = missing

    def _holds(self, claim: Held) -> bool:
        holding = self._runner.holdings.get(claim.task_id)
        return holding is not None and holding.task.epoch == claim.epoch

    def _told(self, message: str) -> None:
        """A message of the inbox or to all supervisors."""
        match message.split():
            case ["cancel", task_id]:
                self._runner.cancel(task_id)
            case ["stack", task_id, request, channel]:
                self._runner.stacks.answer(task_id, request, channel)
            case ["due", at]:
                for partition in self._store.partitions:
                    self._agenda.next_due(partition, int(at))
            case ["beat", partition, worker_id, value]:
                counter, lease_ms = value.split(":")
                self._heart.heard(int(partition), worker_id, BeatValue(int(counter), int(lease_ms)))
            case ["look"]:
                self._heart.now()

    def _on_room(self) -> None:
        self._claims.try_now()

    def _guard_changed(self, alive: bool) -> None:
        if alive:
            log.info("guard is up", worker_id=self.id)
            self._claims.try_now()
        elif self._state != "draining":
            log.warning("guard is down: no claims", worker_id=self.id)

    def _on_types(self) -> None:
        """A child told what it can run: publish it, then claim it."""
        self._background.spawn(self._announce())

    def _has_memory(self) -> bool:
        """Looked at once the limits are known. A strict supervisor takes no task when it could lack memory."""
        if self._memory_checked:
            return not self._refused
        self._memory_checked = True
        limits_mb = [info.memory_limit_mb for info in self._runner.types.values() if info.kind == "sync"]
        if not (missing := shortage(self._settings, limits_mb, memory_bytes())):
            return True
        self._refused = self._settings.strict
        if self._refused:
            log.error(f"refuses to work: {missing}", worker_id=self.id)
            self._stop.set()
        else:
            log.warning(missing, worker_id=self.id)
        return not self._refused

    async def _announce(self) -> None:
        runner = self._runner
        if not runner.types or not self._has_memory():
            return
        try:
            types = list(runner.types.values())
            await self._store.announce(types)
        except (StoreUnavailable, OutcomeUnknown):
            self._announced = False
            return
        self._announced = True
        self._published = sorted(f"{info.type}:{info.schema_hash}" for info in types)
        self._state = "ready" if self._state == "starting" else self._state
        queues = self._settings.queues or tuple(sorted({info.queue for info in runner.types.values()}))
        served = [
            Served(queue, info.type, self._kind(info), info.concurrency or 0)
            for queue in queues
            for info in runner.types.values()
        ]
        if served == self._served:
            return
        self._served = served
        self._claims.serve(served)
        self._heart.now()

    def _kind(self, info: TypeInfo) -> str:
        return FRESH if self._runner.handlers[info.type].fresh_process else info.kind


def _shares(settings: Settings) -> str:
    policy, partitions = settings.policy, settings.partitions
    named = {name: _share(policy.tenant(name)) for name in policy.tenants if name != OTHERS}
    return shares(named, _share(policy.tenant(OTHERS)), partitions=partitions)


def _share(tenant: TenantPolicy) -> Share:
    return Share(tenant.weight, tenant.concurrency or 0)


def run(settings: Settings) -> int:
    """`taskgate worker`: block until stopped; the exit code."""
    logs.configure(settings.log_format, settings.log_level)
    look_at_redis(settings)
    return uvloop.run(_main(settings))


async def _main(settings: Settings) -> int:
    return await Supervisor(settings).run()

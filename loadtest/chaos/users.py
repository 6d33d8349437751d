"""Clients that submit, poll and cancel all the while, and the ledger of what they were promised."""

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from loadtest.ledger import FINAL

POLL_S = (0.5, 2.0)
LONGEST_WAIT_S = 2.0
"""A refused user comes again that soon, whatever it was told: time is short here."""


@dataclass
class Entry:
    """One submission and what its user saw of it."""

    number: int
    task_type: str
    fields: dict[str, Any]
    key: str = ""
    """Idempotency key; without one it is sent once, and may end `unsure`."""
    task_id: str = ""
    unsure: bool = False
    """Its outcome is not known, and will not be asked for."""
    wants_cancel: bool = False
    cancel_asked: bool = False
    cancel_answer: int = 0
    seen: str = ""
    """The final status that its user read."""


@dataclass
class Ledger:
    entries: list[Entry] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    """Answers that must not be given."""
    refused: int = 0

    def accepted(self, entry: Entry, task_id: str) -> None:
        if entry.task_id not in ("", task_id):
            self.broken["a key led to two tasks"] += 1
        entry.task_id = task_id

    @property
    def promised(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.task_id]

    def summary(self) -> str:
        open_ones = sum(not entry.seen for entry in self.promised)
        return f"{len(self.promised)} accepted, {open_ones} open, {self.refused} refused"

    def write(self, path: Path) -> None:
        path.write_text("".join(f"{json.dumps(vars(entry))}\n" for entry in self.entries))


def plan(rng: random.Random, number: int) -> Entry:
    """What one user submits next."""
    tenth = rng.random() < 0.1
    kinds: list[tuple[int, str, dict[str, int]]] = [
        (25, "chaos.cpu", {"ms": rng.randint(5, 300)}),
        (15, "chaos.sleep", {"ms": rng.randint(5, 1000)}),
        (10, "chaos.sleep", {"ms": rng.randint(1000, 6000)}),  # still at work when another supervisor takes over
        (10, "chaos.wait", {"ms": rng.randint(5, 1000)}),
        (15, "chaos.wait", {"ms": rng.randint(1000, 6000)}),
        (2, "chaos.block", {"ms": rng.randint(5, 300)}),
        (6, "chaos.raise", {}),
        (5, "chaos.retry", {"times": rng.randint(1, 4)}),
        (3, "chaos.fail", {}),
        (4, "chaos.die", {"signal": rng.choice([0, signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM])}),
        (1, "chaos.die_async", {"signal": rng.choice([0, signal.SIGSEGV])}),
        (1, "chaos.hang", {}),
        (1, "chaos.stubborn", {}),
        (1, "chaos.leave", {}),
        (5, "chaos.parent", {"ms": rng.randint(5, 500)}),
    ]
    [(_, task_type, payload)] = rng.choices(kinds, [weight for weight, _, _ in kinds])
    fields: dict[str, Any] = {"type": task_type, "payload": payload, "metadata": {"number": number}}
    if tenth:
        fields["delay_s"] = rng.choice([0.05, 0.5, 2.0])
    if rng.random() < 0.2:
        fields["priority"] = rng.randint(0, 9)
    if rng.random() < 0.03:
        fields["deadline_s"] = rng.choice([0.05, 1.0, 5.0])
    return Entry(
        number,
        task_type,
        fields,
        key=f"chaos-{number}" if rng.random() < 0.85 else "",
        wants_cancel=rng.random() < 0.12,
    )


class Users:
    """Each user is a loop: submit, perhaps cancel, poll to the end. `stop` lets them submit nothing more."""

    def __init__(self, ports: Sequence[int], rng: random.Random) -> None:
        self.ledger = Ledger()
        self._bases = [f"http://127.0.0.1:{port}" for port in ports]
        self._rng = rng
        self._http = httpx.AsyncClient(trust_env=False, timeout=4)
        self._stopping = False

    async def run(self, count: int) -> None:
        """Returns when every user has seen the end of its last task."""
        try:
            await asyncio.gather(*(self._user() for _ in range(count)))
        finally:
            await self._http.aclose()

    def stop(self) -> None:
        self._stopping = True

    async def _user(self) -> None:
        while not self._stopping:
            entry = plan(self._rng, len(self.ledger.entries))
            self.ledger.entries.append(entry)
            await self._submit(entry)
            if entry.task_id and entry.wants_cancel:
                await asyncio.sleep(self._rng.uniform(0, 1))
                await self._cancel(entry)
            while entry.task_id and not entry.seen:
                await asyncio.sleep(self._rng.uniform(*POLL_S))
                await self._look(entry)

    async def _submit(self, entry: Entry) -> None:
        headers = {"Idempotency-Key": entry.key} if entry.key else {}
        while not entry.unsure and not entry.task_id:
            try:
                answer = await self._http.post(f"{self._base()}/tasks", json=entry.fields, headers=headers)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                await self._pause()
                continue
            except httpx.TransportError:
                entry.unsure = not entry.key
                await self._pause()
                continue
            match answer.status_code:
                case 202:
                    self.ledger.accepted(entry, str(answer.json()["id"]))
                case 429 | 503:
                    self.ledger.refused += 1
                    entry.unsure = not entry.key and answer.json().get("outcome") == "unknown"
                    await self._wait_as_told(answer)
                case code:
                    self.ledger.broken[f"submit: {code} {answer.text[:300]}"] += 1
                    return

    async def _cancel(self, entry: Entry) -> None:
        entry.cancel_asked = True
        while not entry.cancel_answer:
            answer = await self._ask("POST", f"/tasks/{entry.task_id}/cancel")
            if answer is None:
                continue
            if answer.status_code not in (200, 202, 409):
                self.ledger.broken[f"cancel: {answer.status_code} {answer.text[:300]}"] += 1
            entry.cancel_answer = answer.status_code

    async def _look(self, entry: Entry) -> None:
        answer = await self._ask("GET", f"/tasks/{entry.task_id}")
        if answer is None:
            return
        if answer.status_code != 200:
            self.ledger.broken[f"status of an accepted task: {answer.status_code} {answer.text[:300]}"] += 1
            await self._pause()
            return
        status = answer.json()["status"]
        if status in FINAL:
            entry.seen = status

    async def _ask(self, method: str, path: str) -> httpx.Response | None:
        """None: nobody answered, or only that Redis is away."""
        try:
            answer = await self._http.request(method, self._base() + path)
        except httpx.TransportError:
            await self._pause()
            return None
        if answer.status_code == 503:
            await self._wait_as_told(answer)
            return None
        return answer

    async def _wait_as_told(self, answer: httpx.Response) -> None:
        told = answer.headers.get("retry-after", "")
        if not told.isdecimal() or int(told) < 1:
            self.ledger.broken[f"{answer.status_code} with Retry-After {told!r}"] += 1
        await asyncio.sleep(self._rng.uniform(0.2, LONGEST_WAIT_S))

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.05, 0.5))

    def _base(self) -> str:
        return self._rng.choice(self._bases)

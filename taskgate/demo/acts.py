"""The acts: what the demo does to the service, and what it expects of each."""

import asyncio
import os
import signal
import time
import uuid

from taskgate.demo import orders
from taskgate.demo.api import Unexpected
from taskgate.demo.board import FINAL, Row
from taskgate.demo.orders import Order
from taskgate.demo.stage import Stage, Stuck

_KILL_FROM, _KILL_TO = 0.2, 0.8
_MARGIN = 0.05
"""What is shown may be a quarter of a second old."""
_OTHERS = 3
_BURST_S = 40.0
_AHEAD = 20
"""Tasks before the burst, from which the service knows how fast this queue drains."""


async def refuse(stage: Stage) -> None:
    """A payload that does not fit its type never gets into the queue."""
    answer = await stage.api.submit(Order("wrong payload", "demo.sleep", {"seconds": "long"}))
    pointers = [str(one.get("pointer")) for one in answer.body.get("errors", [])]
    stage.expect(
        "a wrong payload is refused with 422 and says where it is wrong",
        answer.code == 422 and "#/payload/seconds" in pointers,
        f"{answer.code}, {', '.join(pointers) or 'no pointer'}",
    )


async def post_twice(stage: Stage, order: Order) -> None:
    """The same Idempotency-Key is the same task."""
    key = str(uuid.uuid4())
    row = await stage.submit(order, key=key)
    again = await stage.api.submit(order, key=key)
    replayed = again.headers.get("idempotent-replayed") == "true"
    stage.expect(
        "posted twice with one Idempotency-Key: the same task",
        again.code == 202 and again.task_id == row.id and replayed,
        row.id if again.task_id == row.id else f"{row.id} and {again.task_id}",
    )


async def cancel(stage: Stage, row: Row) -> None:
    """A task that sleeps in one blocking call is stopped all the same."""
    await stage.until(lambda: row.status == "running" or row.final, what=f"the start of {row.order.name!r}")
    await stage.api.cancel(row.id)
    asked = time.monotonic()
    stage.say(f"Asked to cancel {row.order.name!r}, which sleeps in one blocking call")
    await stage.ended([row])
    stage.expect(
        "a running task is cancelled", row.status == "canceled", f"{row.status} {time.monotonic() - asked:.1f} s later"
    )


async def kill(stage: Stage, victim: Row) -> None:
    """SIGKILL to the one process that runs the victim; nobody else's attempt may suffer."""
    running, pid, fraction = await _moment(stage, victim)
    os.kill(pid, signal.SIGKILL)
    stage.say(f"SIGKILL to process {pid}, which had {victim.order.name!r} at {fraction:.0%}; {len(running)} others run")
    await stage.ended([victim, *running])
    result = await stage.api.result(victim.id) if victim.status == "succeeded" else {}
    stage.expect(
        f"killed between {_KILL_FROM:.0%} and {_KILL_TO:.0%} of its work, it succeeds in its second attempt",
        victim.status == "succeeded" and victim.attempt == 2,
        f"process {pid} at {fraction:.0%}; {victim.status} in attempt {victim.attempt},"
        f" which went on after {result.get('resumed_at')} of {result.get('files')} files",
    )
    hurt = [row.order.name for row in running if row.attempt != 1]
    stage.expect(f"the {len(running)} tasks that ran beside it stay in their first attempt", not hurt, ", ".join(hurt))


async def _moment(stage: Stage, victim: Row) -> tuple[list[Row], int, float]:
    """When to kill: (what runs beside the victim, process id of its child, how far it is)."""
    while not victim.ended:
        pid = await stage.api.child_of(victim.id)
        rows = [row for row in stage.board.rows if row.order.attempts == 1 and not row.final]
        now, *tasks = await asyncio.gather(*(stage.api.task(row.id) for row in [victim, *rows]))
        for _ in range(len(rows), _OTHERS + 1):  # a slow machine: the others are through before the moment comes
            waiters = [row for row in stage.board.rows if row.order.type == "demo.wait"]
            await stage.submit(orders.waiter(len(waiters) + 1))
        running = [row for row, task in zip(rows, tasks, strict=True) if task["status"] == "running"]
        fraction = ((now.get("progress") or {}).get("percent") or 0) / 100
        if now["status"] == "running" and fraction > _KILL_TO - _MARGIN:
            break
        if pid is not None and fraction >= _KILL_FROM + _MARGIN and now["attempt"] == 1 and len(running) >= _OTHERS:
            return running, pid, fraction
        await asyncio.sleep(0.1)
    raise Stuck(f"no moment to kill {victim.order.name!r} between {_KILL_FROM:.0%} and {_KILL_TO:.0%}")


async def burst(stage: Stage, size: int, *, optional: bool = False) -> None:
    """More than the queue takes: refused at the door with the time to come again, never dropped."""
    room = await stage.api.room_of("burst")
    if optional and (room is None or room >= size):
        stage.say(f"No burst: nobody works on a queue `burst` that takes fewer than {size} tasks")
        return
    ahead = await asyncio.gather(*(_enter(stage, order) for order in orders.burst(_AHEAD)))
    await asyncio.gather(*(_end(stage, task_id) for task_id, _ in ahead))
    stage.say(f"A burst of {size} tasks into a queue that takes {room}")
    started = time.monotonic()
    entries = await asyncio.gather(*(_enter(stage, order) for order in orders.burst(size)))
    waits_s = [wait_s for _, waits in entries for wait_s in waits]
    took_s = time.monotonic() - started
    stage.say(f"All {size} are in after {took_s:.1f} s and {len(waits_s)} times 429")
    stage.expect(
        "a burst gets 429s, and gets in after Retry-After",
        bool(waits_s),
        f"{len(waits_s)} times 429, Retry-After {min(waits_s, default=0)} to {max(waits_s, default=0)} s",
    )
    ends = await asyncio.gather(*(_end(stage, task_id) for task_id, _ in entries))
    once = sum(end == ("succeeded", 1) for end in ends)
    stage.expect(
        "every task of the burst ran once", once == len({task_id for task_id, _ in entries}) == size, f"{once}"
    )


async def _enter(stage: Stage, order: Order) -> tuple[str, list[int]]:
    """Its task id, and the seconds it had to wait at the door each time."""
    waits: list[int] = []
    while sum(waits) < _BURST_S:
        answer = await stage.api.submit(order)
        if answer.code == 202:
            return answer.task_id, waits
        if answer.code != 429 or answer.retry_after_s < 1:
            raise Unexpected(f"{order.name} was answered with {answer.code}: {answer.body}")
        waits.append(answer.retry_after_s)
        await asyncio.sleep(answer.retry_after_s)
    raise Stuck(f"{order.name} was refused {len(waits)} times in {sum(waits)} s")


async def _end(stage: Stage, task_id: str) -> tuple[str, int]:
    deadline = time.monotonic() + _BURST_S
    while True:
        task = await stage.api.task(task_id)
        if task["status"] in FINAL or time.monotonic() > deadline:
            return task["status"], task["attempt"]
        await asyncio.sleep(task["poll_after_ms"] / 1000)

"""Taskgate's side of the benchmark jobs, and what the simulated users submit."""

import asyncio
import os
import time
from typing import Any

from loadtest import bodies, marks
from taskgate import Attempt, Fail, handler


@handler("noop")
def noop(payload: dict[str, Any]) -> dict[str, Any]:
    marks.leave(payload["n"])
    return {"n": payload["n"]}


@handler("hold")
async def hold(payload: dict[str, Any], attempt: Attempt) -> None:
    """Keeps running for a while, changing nothing."""
    await asyncio.sleep(payload["seconds"])


@handler("progress.cost")
def progress_cost(payload: dict[str, Any], attempt: Attempt) -> dict[str, float]:
    """Nanoseconds that one progress() call takes here, in the child, while the supervisor reads along."""
    calls = payload["calls"]
    started = time.perf_counter_ns()
    for n in range(calls):
        attempt.progress(n, calls)
    with_calls = time.perf_counter_ns() - started
    started = time.perf_counter_ns()
    for _ in range(calls):
        pass
    return {"ns": (with_calls - (time.perf_counter_ns() - started)) / calls}


@handler("dies", max_attempts=1)
def dies(payload: dict[str, Any]) -> None:
    marks.leave(payload["n"])
    os._exit(7)


@handler("sleeps")
def sleeps(payload: dict[str, Any]) -> None:
    marks.leave(payload["n"])
    time.sleep(payload["seconds"])


@handler("webhook")
async def webhook(payload: dict[str, Any], attempt: Attempt) -> dict[str, Any]:
    """A few steps with short waits, each told with its time of day; then what has arrived, or a failure if told to."""
    for n in range(payload["steps"]):
        attempt.progress(n, payload["steps"], unit="steps")
        attempt.emit("step", {"at_ms": time.time() * 1000})
        await asyncio.sleep(payload["step_s"])
    if payload["fails"]:
        raise Fail("as told")
    return {"delivery": payload["delivery"], "sha256": bodies.digest(payload["body"])}

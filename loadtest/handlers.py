"""Taskgate's side of the benchmark jobs, and what the simulated users submit."""

import asyncio
import os
import time
from typing import Any

from loadtest import marks
from taskgate import Attempt, handler


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


@handler("steps")
async def steps(payload: dict[str, Any], attempt: Attempt) -> dict[str, Any]:
    """A few reported steps with short waits between them; raises at the end if told to."""
    for n in range(payload["steps"]):
        attempt.progress(n, payload["steps"], unit="steps")
        await asyncio.sleep(payload["pause_s"])
    if payload.get("fails"):
        raise ValueError("as told")
    return {"steps": payload["steps"]}

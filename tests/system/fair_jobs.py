"""Handlers that share slots: what runs when is told by their stamps."""

import asyncio
import time

from taskgate import Attempt, handler
from tests.system.jobs import stamp


def _work(ms: float, attempt: Attempt) -> None:
    stamp("start", attempt)
    time.sleep(ms / 1000)
    stamp("end", attempt)


@handler("sleep", max_attempts=9)
def sleep(ms: float, attempt: Attempt) -> None:
    _work(ms, attempt)


@handler("sleep.fresh", fresh_process=True)
def sleep_fresh(ms: float, attempt: Attempt) -> None:
    _work(ms, attempt)


@handler("pair", max_attempts=9, concurrency=2)
def pair(ms: float, attempt: Attempt) -> None:
    _work(ms, attempt)


@handler("keyed", max_attempts=9, concurrency_per_key=2)
def keyed(ms: float, attempt: Attempt) -> None:
    _work(ms, attempt)


@handler("nap")
async def nap(ms: float, attempt: Attempt) -> None:
    stamp("start", attempt)
    await asyncio.sleep(ms / 1000)
    stamp("end", attempt)


@handler("nap.pair", max_attempts=9, concurrency=2)
async def nap_pair(ms: float, attempt: Attempt) -> None:
    stamp("start", attempt)
    await asyncio.sleep(ms / 1000)
    stamp("end", attempt)


@handler("nap.other")
async def nap_other(ms: float, attempt: Attempt) -> None:
    stamp("start", attempt)
    await asyncio.sleep(ms / 1000)
    stamp("end", attempt)

"""Answers that wait (`?wait=`, `Prefer: wait=` of RFC 7240): woken by the hub, let go by a drain or a hang-up."""

import asyncio
import contextlib
import functools
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from app.access import unauthorized
from app.body import ClientGone, until_gone
from app.errors import Problem
from app.grants import Grant
from app.hub import BACKUP_S, Hub
from app.reply import Caller
from app.snapshots import Snapshot

T = TypeVar("T")

MAX_WAIT_S = 60
_LATER_MS = 50

_PREFERENCE = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
"""Up to a comma outside of quotes."""


async def until(
    hub: Hub, task_id: str, caller: Caller, wanted: Callable[[Snapshot], bool], *, wait_s: float, receive: Receive
) -> Snapshot:
    """The first state that is wanted; after `wait_s`, or when the gateway drains, what there is.

    Raises:
        ClientGone: the client hung up.
        Problem: its key has ended.
        TaskNotFound: there is no such task, or no longer.
    """
    return await while_listening(look(hub, task_id, caller.tenant, wanted, wait_s=wait_s), receive, caller.grant)


async def look(hub: Hub, task_id: str, tenant: str, wanted: Callable[[Snapshot], bool], *, wait_s: float) -> Snapshot:
    """`until`, for who is not listened to meanwhile."""
    async with hub.watch(task_id, tenant) as watch:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while True:
                    generation = watch.generation
                    snapshot = await watch.snapshot()
                    if wanted(snapshot) or hub.draining:
                        return snapshot
                    await watch.wait(generation, _until_another_look_s(snapshot))
    return await hub.snapshots.get(task_id, tenant)


def _until_another_look_s(snapshot: Snapshot) -> float:
    """That a task is lost nobody tells: whoever looks sees it when the sign of life has run out."""
    alive_ms = snapshot.record.alive_ms
    return BACKUP_S if alive_ms is None else min(BACKUP_S, (alive_ms + _LATER_MS) / 1000)


async def while_listening(answering: Coroutine[Any, Any, T], receive: Receive, grant: Grant) -> T:
    """Its result, unless the client hangs up first, or its key ends."""
    answer = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(until_gone(receive))
    grant.waits.add(answer)
    if grant.ended:
        answer.cancel()
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        if answer.done() and not answer.cancelled():
            return answer.result()
        if grant.ended:
            raise unauthorized()
        raise ClientGone
    finally:
        grant.waits.discard(answer)
        answer.cancel()
        gone.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


def asked_s(text: str) -> float:
    """Seconds of `?wait=`; more than MAX_WAIT_S is that.

    Raises:
        Problem: not a number of seconds.
    """
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,20})?", text) is None:
        raise Problem("bad-request", f"`wait` is a number of seconds, 0 to {MAX_WAIT_S}.")
    return min(float(text), MAX_WAIT_S)


@functools.lru_cache(64)
def preferred_s(prefer: bytes) -> int:
    """Seconds of the first `wait` among the preferences; 0: none that can be followed, which is never an error."""
    for preference in _PREFERENCE.findall(prefer):
        name, _, value = preference.partition(b";")[0].partition(b"=")
        if name.strip().lower() == b"wait":
            seconds = value.strip().removeprefix(b'"').removesuffix(b'"')
            return min(int(seconds), MAX_WAIT_S) if seconds.isdigit() and len(seconds) < 10 else 0
    return 0


def applied(wait_s: float) -> tuple[bytes, bytes]:
    return b"preference-applied", b"wait=%d" % wait_s

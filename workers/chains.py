"""Where an async task is: what its coroutines await, and those that it has started, and its calls in threads."""

import asyncio
import gc
import sys
from collections.abc import Iterable, Iterator, Set
from concurrent.futures import Future
from concurrent.futures.thread import _WorkItem
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

from taskgate.contract.stacks import Frame, Thread, bounded
from workers.dumps import inside
from workers.failures import clean

MAIN = "handler"
_FRAMES = 100
_LINKS = 10_000
"""Followed at most, from the handler inwards: who awaits himself through thousands of coroutines has a fault."""
_TASKS = 50
_LINK = {
    CoroutineType: ("cr_frame", "cr_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
}
"""Where each kind of coroutine keeps its frame, and what it waits for."""
_RUN = _WorkItem.run.__code__


def of_task(main: "asyncio.Task[Any]", started: Iterable["asyncio.Task[Any]"], calls: Set[Future[Any]]) -> list[Thread]:
    """In its event loop, where none of them is running. Nothing here calls code of the handler's."""
    names = {main: MAIN} | {task: clean(task.get_name(), 100) for task in list(started)[:_TASKS] if not task.done()}
    told = [_chain(task, name, names) for task, name in names.items()]
    return bounded([*told, *_in_threads(calls)])


def _chain(task: "asyncio.Task[Any]", name: str, names: dict["asyncio.Task[Any]", str]) -> Thread:
    frames = [_frame(frame.f_code, frame.f_lineno) for frame in _frames(task.get_coro())]
    frames.reverse()
    awaits = [names[one] for one in _waited_for(task) if one in names]
    return Thread(name, name == MAIN, inside(frames[:_FRAMES]), awaits, len(frames) > _FRAMES)


def _frames(link: Any) -> Iterator[FrameType]:
    """From the outside in."""
    link = getattr(link, "_coro", link)  # without the wrapper that notes its steps
    for _ in range(_LINKS):
        if type(link) not in _LINK:
            # Iterators of C, such as `__anext__()` of a generator: what they drive is seen only by the collector.
            link = next((one for one in _referents(link) if type(one) in _LINK), None)
        if link is None:
            return
        frame, awaited = _LINK[type(link)]
        if getattr(link, frame) is None:
            return
        yield getattr(link, frame)
        link = getattr(link, awaited)


def _referents(link: Any) -> list[Any]:
    return gc.get_referents(link) if type(link).__module__ == "builtins" else []


def _waited_for(task: "asyncio.Task[Any]") -> list[Any]:
    """The asyncio task that it awaits, or those which it gathers."""
    future = getattr(task, "_fut_waiter", None)
    if future is None or isinstance(future, asyncio.Task):
        return [future]
    gathered = getattr(future, "_children", ()) if type(future).__module__.startswith("asyncio") else ()
    return list(gathered)


def _in_threads(calls: Set[Future[Any]]) -> Iterator[Thread]:
    """A thread of the executor belongs to the call that it runs; idle ones to nobody."""
    if not calls:
        return
    for number, innermost in sys._current_frames().items():
        frames: list[Frame] = []
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code is _RUN and getattr(frame.f_locals.get("self"), "future", None) in calls:
                yield Thread(f"thread {number:#x}", False, frames[:_FRAMES], [], len(frames) > _FRAMES)
                break
            frames.append(_frame(frame.f_code, frame.f_lineno))
            frame = frame.f_back


def _frame(code: CodeType, line: int | None) -> Frame:
    return Frame(clean(code.co_filename, 500), line, clean(code.co_qualname, 200))

"""Stacks as supervisors tell them and gateways show them: frames only, the innermost first, bounded."""

from collections.abc import Iterable

import msgspec

LIMIT_BYTES = 30_000
"""Of a stack that is asked for: shown twice, as frames and as text, it stays below 64 KiB."""
ERROR_BYTES = 8_000
"""Of one that an error or an event carries, as text."""

_PER_FRAME = 60
"""What a frame costs besides its names."""


class Frame(msgspec.Struct, frozen=True):
    file: str
    line: int | None
    function: str


class Thread(msgspec.Struct, frozen=True):
    """A thread, or an asyncio task of the handler's."""

    name: str
    current: bool
    """It runs the handler itself; the others are what this has started, or what else lives in its process."""
    frames: list[Frame]
    """The innermost first."""
    awaits: list[str] = []
    """Names of the asyncio tasks that it waits for."""
    truncated: bool = False
    """Outer frames were left out."""


class StackAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor answers when it is asked for the stack of a task."""

    task_id: str
    attempt: int
    worker: str
    taken_at_ms: int
    """Redis' clock."""
    source: str | None = None
    """`loop`: the task's own, told by its event loop. `faulthandler`: written by a signal handler of its process."""
    shared: bool = False
    """It is that of an event loop that does not answer and is not known to be in this very task."""
    threads: list[Thread] | None = None
    """None: there is none, for `reason`."""
    reason: str | None = None


def bounded(threads: Iterable[Thread], limit: int = LIMIT_BYTES) -> list[Thread]:
    """As much as fits: that which runs the handler first, of each the innermost frames."""
    kept = []
    for thread in sorted(threads, key=lambda one: not one.current):
        limit -= _PER_FRAME + _size(thread.name) + sum(_size(name) for name in thread.awaits)
        if limit < 0:
            break
        frames = []
        for frame in thread.frames:
            limit -= _PER_FRAME + _size(frame.file) + _size(frame.function)
            if limit < 0:
                break
            frames.append(frame)
        truncated = thread.truncated or len(frames) < len(thread.frames)
        kept.append(Thread(thread.name, thread.current, frames, thread.awaits, truncated))
    return kept


def _size(name: str) -> int:
    return len(msgspec.json.encode(name))


def text(threads: Iterable[Thread]) -> str:
    """For people, much as faulthandler writes it."""
    return "\n".join(line for thread in threads for line in _lines(thread))


def _lines(thread: Thread) -> Iterable[str]:
    yield f"{thread.name} (most recent call first):"
    if thread.awaits:
        yield f"  awaits {', '.join(thread.awaits)}"
    for frame in thread.frames:
        yield f'  File "{frame.file}", line {"?" if frame.line is None else frame.line} in {frame.function}'
    if thread.truncated:
        yield "  …"

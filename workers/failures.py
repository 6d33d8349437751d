"""An exception as the record keeps it: bounded, valid JSON, whatever the exception does when it is asked."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from traceback import StackSummary, walk_tb
from types import TracebackType
from typing import Any, TypeGuard, TypeVar

import msgspec

import taskgate
from taskgate.contract.states import ErrorKind

E = TypeVar("E", bound=BaseException)

MESSAGE_CHARS = 2_000
TRACEBACK_CHARS = 16_000
_CHAIN = 5
_GROUP = 10
OURS = frozenset(
    str(folder / name)
    for folder, names in {
        Path(__file__).parent: ("child.py", "sync_child.py", "async_child.py"),
        Path(taskgate.__file__).parent: ("handlers.py",),
    }.items()
    for name in names
)
"""The files of the frames that lead to a handler: the same in every stack."""
_FRAMES_FIRST, _FRAMES_LAST = 5, 25


def error_json(kind: ErrorKind, message: str, **facts: Any) -> bytes:
    """The record's `error`: kind, message and what else is known."""
    return msgspec.json.encode({"kind": kind, "message": clean(message, MESSAGE_CHARS), **facts})


def describe(error: BaseException, kind: ErrorKind = ErrorKind.EXCEPTION, *, message: str | None = None) -> bytes:
    """`error` with its type, message (or `message`) and traceback. Never raises, however hostile the exception is."""
    memory = is_a(error, MemoryError) and kind is ErrorKind.EXCEPTION
    return error_json(
        ErrorKind.MEMORY if memory else kind,
        message_of(error) if message is None else message,
        type=_type_name(error),
        traceback=_traceback(error),
        **({"rss_peak_bytes": _peak_bytes()} if memory else {}),
    )


def _peak_bytes() -> int | None:
    """The most that this process had in memory."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, MemoryError, StopIteration):
        return None


def timeout_message(timeout_s: float) -> str:
    """Whether it ended when asked or had to be killed, its own child and the supervisor say the same."""
    return f"ran longer than its timeout of {timeout_s:g} s"


def is_a(error: BaseException, kinds: type[E] | tuple[type[E], ...]) -> TypeGuard[E]:
    """As `except` sees it: isinstance() would also ask `__class__`, which may be code of the handler's."""
    return issubclass(type(error), kinds)


def clean(text: str, limit: int, *, keep_end: bool = False) -> str:
    """At most `limit` characters, none of which JSON or a terminal chokes on. Line ends and tabs stay."""
    if len(text) > limit:
        half = limit // 2
        text = (
            f"{text[:half]}\n… {len(text) - limit} characters left out …\n{text[-half:]}"
            if keep_end
            else (f"{text[:limit]}… ({len(text)} characters)")
        )
    return text.encode("utf-8", "replace").decode().translate(_CONTROLS)


def message_of(error: BaseException) -> str:
    """Its text; the name of its type where it has none, so that no reason is empty."""
    try:
        text = str(error)
        return (text if type(text) is str else str.__str__(text)) or type(error).__name__
    except BaseException as broken:  # noqa: BLE001 — handler code: str() may do anything
        return f"<its message cannot be read: {type(broken).__name__}>"


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module, name = kind.__module__, kind.__qualname__
    return clean(name if module == "builtins" else f"{module}.{name}", 200)


def _traceback(error: BaseException) -> str:
    try:
        return clean("".join(_lines(error)), TRACEBACK_CHARS, keep_end=True)
    except BaseException as broken:  # noqa: BLE001 — handler code: its attributes may do anything
        return f"<its traceback cannot be read: {type(broken).__name__}>"


def _lines(error: BaseException) -> Iterator[str]:
    """Like traceback.format_exception, but of a bounded part of the chain, of groups and of the frames."""
    chain: list[tuple[BaseException, str]] = []
    link = ""
    one: BaseException | None = error
    while one is not None and len(chain) < _CHAIN:
        chain.append((one, link))
        if one.__cause__ is not None:
            one, link = one.__cause__, "\nThe above exception was the direct cause of the following exception:\n\n"
        elif not one.__suppress_context__:
            one, link = one.__context__, "\nDuring handling of the above exception, another exception occurred:\n\n"
        else:
            one = None
    if one is not None:
        yield "… earlier causes left out …\n"
    after = ""
    for one, link in reversed(chain):
        yield after
        after = link
        yield from _frames(one.__traceback__)
        yield f"{_type_name(one)}: {clean(message_of(one), MESSAGE_CHARS)}\n"
        if is_a(one, BaseExceptionGroup):
            for inner in one.exceptions[:_GROUP]:
                yield f"  + {_type_name(inner)}: {clean(message_of(inner), 500)}\n"
                yield from (f"  | {line}" for line in _frames(inner.__traceback__))
            if len(one.exceptions) > _GROUP:
                yield f"  + … and {len(one.exceptions) - _GROUP} more\n"


def _handlers_part(trace: TracebackType) -> TracebackType:
    """Without the frames that lead to the handler."""
    one: TracebackType | None = trace
    while one is not None and one.tb_frame.f_code.co_filename in OURS:
        one = one.tb_next
    return one or trace


def _frames(trace: TracebackType | None) -> Iterator[str]:
    if trace is None:
        return
    yield "Traceback (most recent call last):\n"
    first: list[Any] = []
    last: deque[Any] = deque(maxlen=_FRAMES_LAST)
    left_out = 0
    for frame in walk_tb(_handlers_part(trace)):
        if len(first) < _FRAMES_FIRST:
            first.append(frame)
        else:
            left_out += len(last) == _FRAMES_LAST
            last.append(frame)
    yield from StackSummary.extract(first, lookup_lines=True).format()
    if left_out:
        yield f"  … {left_out} frames left out …\n"
    yield from StackSummary.extract(last, lookup_lines=True).format()

"""A task in words and numbers, as a line on a terminal has them."""

from typing import Any

from taskgate.cli.text import plain
from taskgate.client import FINAL, Progress, Task

CALM = (None, "computing", "waiting")
"""Verdicts of health that need no word."""
_BYTES = ("bytes", "byte", "B")
"""Units that are shown in larger ones."""


def describe(task: Task, *, brief: bool = False) -> str:
    """What a task is doing, in one line. `brief`: without what a live table has columns for."""
    parts = [str(task.get("status", "?"))]
    if (task.get("attempt") or 0) > 1:
        parts.append(f"attempt {task['attempt']}")
    if task.get("health") not in CALM and not brief:
        parts.append(str(task["health"]))
    if task.get("status") not in FINAL:
        parts += [task.get("stage") or "", *_waiting_words(task), *_progress_words(task.get("progress") or {})]
        parts += [] if brief else [left(task)]
    error = task.get("error")
    if error:
        parts.append(f"{error.get('kind')}: {error.get('message')}")
    return plain(" · ".join(part for part in parts if part))


def _waiting_words(task: Task) -> list[str]:
    words = []
    if task.get("queue_position"):
        words.append(f"{task['queue_position']} before it")
    starts_in_ms = (task.get("estimate") or {}).get("starts_in_ms")
    if starts_in_ms is not None and task.get("status") not in ("running", "canceling"):
        words.append(f"starts in about {span(starts_in_ms / 1000)}")
    return words


def _progress_words(progress: Progress) -> list[str]:
    current, total = progress.get("current"), progress.get("total")
    words = []
    if current is not None:
        unit = progress.get("unit") or ""
        shown = size if unit in _BYTES else number
        of = f"/{shown(total)}" if total else ""
        words.append(f"{shown(current)}{of} {'' if unit in _BYTES else unit}".rstrip())
    return [*words, progress.get("stage") or "", progress.get("message") or ""]


def left(task: Task) -> str:
    """The time left, which is always a guess; "" when nobody knows."""
    remaining_ms = (task.get("estimate") or {}).get("remaining_ms")
    return "" if remaining_ms is None or task.get("status") != "running" else f"about {span(remaining_ms / 1000)} left"


def span(seconds: float) -> str:
    """A duration in at most two units."""
    left_s = max(0, round(seconds))
    words = []
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left_s = divmod(left_s, size_s)
        if count:
            words.append(f"{count} {unit}")
        elif words:
            break
    return " ".join(words[:2]) or "0 s"


def number(value: float) -> str:
    """Whole ones digit by digit, others to three places; those beyond all counting as powers of ten."""
    if abs(value) >= 1e15:
        return f"{value:g}"
    whole, point, rest = f"{value:,.3f}".partition(".")
    rest = rest.rstrip("0")
    return f"{whole}{point}{rest}" if rest else whole


def size(count: float) -> str:
    """Bytes, in the largest unit of which there is one."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.1f} {units[0]}" if count < 10 and units[0] != "B" else f"{count:.0f} {units[0]}"


def percent_of(task: Task) -> float | None:
    """How far it is; None when that is not known."""
    if task.get("status") == "succeeded":
        return 100.0
    found: Any = (task.get("progress") or {}).get("percent")
    return found if isinstance(found, int | float) else None

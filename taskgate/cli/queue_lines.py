"""Queues as a terminal shows them: a bar for each limit and each share."""

from collections.abc import Iterator
from typing import Any

from taskgate.cli.text import plain
from taskgate.cli.words import number, size, span
from taskgate.client import Queues

FULL, EMPTY = "█", "░"
_CELLS = 20
_STATES = ("queued", "scheduled", "retrying", "running", "dead")


def lines(found: Queues) -> Iterator[str]:
    for item in found.get("items", []):
        yield from _queue_lines(item)
        yield ""
    if found.get("more_queues"):
        yield f"and {number(found['more_queues'])} queues with less"
    own = found.get("tenant") or {}
    yield f"tenant {plain(own.get('tenant', '?'))}: {_counted(own, ('waiting', 'running'))}{_rate(own)}"
    yield from _limit_lines(own)


def _queue_lines(item: dict[str, Any]) -> Iterator[str]:
    age_ms, per_s, wait_ms = (item.get(name) for name in ("oldest_age_ms", "drain_per_s", "estimated_wait_ms"))
    words = [_counted(item, _STATES), size(item.get("bytes") or 0)]
    least = "at least " if item.get("oldest_age_at_least") else ""
    words += [] if age_ms is None else [f"oldest {least}{span(age_ms / 1000)}"]
    yield f"{plain(item.get('queue'))}: {' · '.join(words)}"
    moves = ["speed not known yet" if per_s is None else f"{number(per_s)}/s leave"]
    moves += [f"about {span(wait_ms / 1000)} to wait"] if wait_ms else []
    yield f"  {' · '.join(moves)} · when full: {plain(item.get('on_full'))}"
    yield from _limit_lines(item)
    for one in item.get("tenants", []):
        words = [_counted(one, ("ready",)), _running(one), f"weight {number(one.get('weight') or 1)}"]
        yield _bar_line(plain(one.get("tenant")), one.get("share"), " · ".join(words))
    if item.get("more_tenants"):
        yield f"  and {number(item['more_tenants'])} more tenants"
    for one in item.get("types", []):
        if one.get("ready") or one.get("running") or one.get("concurrency"):  # else it is only published
            yield f"  type {plain(one.get('type'))}: {_counted(one, ('ready',))} · {_running(one)}"


def _limit_lines(item: dict[str, Any]) -> Iterator[str]:
    for one in item.get("limits", []):
        name, used, most = plain(one.get("limit")), one.get("used"), one.get("max")
        shown = size if name.endswith("-bytes") else span if name.endswith("-wait") else number
        part = used / most if used is not None and most else None
        yield _bar_line(name, part, f"{'?' if used is None else shown(used)} of {shown(most or 0)}")


def _bar_line(name: str, part: float | None, words: str) -> str:
    cells = min(_CELLS, round((part or 0) * _CELLS))
    if part and not cells:
        cells = 1  # something is not nothing
    percent = "" if part is None else f"{part * 100:.0f} %"
    return f"  {name:<16} {FULL * cells}{EMPTY * (_CELLS - cells)} {percent:>5}  {words}"


def _counted(item: dict[str, Any], names: tuple[str, ...]) -> str:
    return " · ".join(f"{number(item.get(name) or 0)} {name}" for name in names)


def _running(item: dict[str, Any]) -> str:
    of = f" of {number(item['concurrency'])}" if item.get("concurrency") else ""
    return f"{number(item.get('running') or 0)}{of} running"


def _rate(own: dict[str, Any]) -> str:
    if not own.get("rate_per_s"):
        return ""
    return f" · at most {number(own['rate_per_s'])} submissions/s, {number(own.get('burst') or 1)} at once"

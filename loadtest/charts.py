"""A load test over time, as one HTML page: each chart an SVG in it, no script and no other file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Line = Sequence[tuple[float, float]]
"""Seconds since the beginning, and a value."""

_WIDTH, _HEIGHT = 1000, 260
_LEGEND = 18
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 12, 260, 28
_COLOURS = (
    "#2471a3",
    "#c0392b",
    "#1e8449",
    "#b9770e",
    "#6c3483",
    "#148f77",
    "#7b241c",
    "#34495e",
    "#d35400",
    "#808b96",
    "#f1c40f",
    "#e91e63",
)
_STYLE = "body{font:15px sans-serif;max-width:1020px;margin:2em auto;color:#222}svg{width:100%}.broken{color:#c0392b}"
_GAP_S = 5.0
"""Points that are further apart are not joined: nothing is known between them."""


@dataclass(frozen=True)
class Chart:
    title: str
    lines: Mapping[str, Line]
    shown: Callable[[float], str] = "{:,.4g}".format


def page(title: str, facts: Sequence[str], charts: Sequence[Chart]) -> str:
    """`facts`: lines above the charts; those that begin with `broken` stand out."""
    words = "".join(f"<p{_marked(fact)}>{escape(fact)}</p>" for fact in facts)
    last_s = max((at_s for chart in charts for line in chart.lines.values() for at_s, _ in line), default=0.0) or 1.0
    pictures = "".join(f"<h2>{escape(chart.title)}</h2>{svg(chart, last_s)}" for chart in charts)
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f"{head}<h1>{escape(title)}</h1>{words}{pictures}</html>\n"


def of_run(rows: Sequence[Mapping[str, Any]], samples: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """`rows` of the users' journal, `samples` of the service; both with their time of day, `at_s`."""
    times = [each["at_s"] for each in (*rows, *samples)]
    began_s = min(times, default=0.0)

    def line(of: Sequence[Mapping[str, Any]], name: str) -> Line:
        return [(each["at_s"] - began_s, each[name]) for each in of if each.get(name) is not None]

    def each_process(name: str, unit: float = 1) -> dict[str, Line]:
        processes = sorted({process for sample in samples for process in sample[name]})
        return {
            process: [(each["at_s"] - began_s, each[name][process] / unit) for each in samples if process in each[name]]
            for process in processes
        }

    return [
        Chart("Users", {"users": line(rows, "users")}),
        Chart("Rate, a second", {"answers": line(rows, "answers"), "tasks accepted": line(rows, "accepted")}),
        Chart(
            "Latency",
            {
                "202, median": line(rows, "accepted_p50_ms"),
                "202, p99": line(rows, "accepted_p99_ms"),
                "status, p99": line(rows, "status_p99_ms"),
                "event age, p99": line(rows, "age_p99_ms"),
            },
            "{:,.4g} ms".format,
        ),
        Chart("Refusals, a second", {"429": line(rows, "refused")}),
        Chart("Queue depth, tasks", {"waiting": line(samples, "waiting"), "running": line(samples, "running")}),
        Chart("Memory of each process", each_process("rss_bytes", 2**20), "{:,.4g} MiB".format),
        Chart("CPU of each process, cores", each_process("cores"), "{:.2f}".format),
    ]


def svg(chart: Chart, last_s: float) -> str:
    top = nice_top(max((value for line in chart.lines.values() for _, value in line), default=0))
    height = max(_HEIGHT, _TOP + _LEGEND * (len(chart.lines) + 1))
    bottom_px = height - _BOTTOM

    def x(at_s: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * at_s / last_s, 1)

    def y(value: float) -> float:
        return round(bottom_px - (bottom_px - _TOP) * value / top, 1)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(chart.title)}" font-size="13">']
    for quarter in range(5):
        value = top * quarter / 4
        parts.append(f'<path d="M{_LEFT} {y(value)}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{chart.shown(value)}</text>')
        at_s = last_s * quarter / 4
        parts.append(f'<text x="{x(at_s)}" y="{height - 8}" text-anchor="middle">{at_s:.0f} s</text>')
    for number, (name, line) in enumerate(chart.lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        most = f", at most {chart.shown(max(value for _, value in line))}" if line else ", nothing"
        words, line_y = escape(f"{name}{most}"), _TOP + 10 + _LEGEND * number
        parts.append(f'<text x="{_WIDTH - _RIGHT + 14}" y="{line_y}" fill="{colour}">{words}</text>')
        path = "".join(f"{'L' if joined else 'M'}{x(at)} {y(value)}" for joined, (at, value) in _joined(line))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return "".join([*parts, "</svg>"])


def nice_top(most: float) -> float:
    """The next 1, 2, 4 or 8 times a power of ten: quarters of it are round."""
    if most <= 0:
        return 1.0
    power = 10.0 ** len(f"{int(most)}") if most >= 1 else 10.0
    while power / 10 >= most:
        power /= 10
    return min(step * power / 10 for step in (1, 2, 4, 8, 10) if step * power / 10 >= most)


def _joined(line: Line) -> list[tuple[bool, tuple[float, float]]]:
    """Each point, and whether it is joined to the one before."""
    return [
        (before is not None and point[0] - before[0] <= _GAP_S, point)
        for before, point in zip([None, *line], line, strict=False)
    ]


def _marked(fact: str) -> str:
    return ' class="broken"' if fact.startswith("broken") else ""

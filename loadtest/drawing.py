"""The curves as a PNG: rate to the right, the 99th percentile upwards (both logarithmic), one line a service."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

Point = tuple[float, float]
"""Requests a second, milliseconds."""

_SIZE = 1100, 700
_LEFT, _TOP, _RIGHT, _BOTTOM = 90, 70, 30, 70
_INK, _GRID = "#222222", "#dddddd"
_COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#b9770e", "#6c3483")


class _Axis:
    """A logarithmic axis from a power of ten's 1, 2 or 5 to another."""

    def __init__(self, values: Iterable[float], first_px: float, last_px: float) -> None:
        found = [max(value, 1e-3) for value in values]
        steps = [base * 10.0**power for power in range(-3, 8) for base in (1, 2, 5)]
        low = max(step for step in steps if step <= min(found))
        high = min(step for step in steps if step >= max(found) and step > low)
        self.ticks = [step for step in steps if low <= step <= high]
        self._low, self._span = math.log(low), math.log(high) - math.log(low)
        self._first, self._length = first_px, last_px - first_px

    def at(self, value: float) -> float:
        return self._first + self._length * (math.log(max(value, 1e-3)) - self._low) / self._span


def draw(path: Path, lines: Mapping[str, Sequence[Point]], *, title: str) -> None:
    """Write the picture; `lines`: by what the legend calls them."""
    points = [point for line in lines.values() for point in line]
    width, height = _SIZE
    across = _Axis((rate for rate, _ in points), _LEFT, width - _RIGHT)
    upwards = _Axis((ms for _, ms in points), height - _BOTTOM, _TOP)
    image = Image.new("RGB", _SIZE, "white")
    pen = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(20), ImageFont.load_default(15)
    for tick in across.ticks:
        pen.line([(across.at(tick), _TOP), (across.at(tick), height - _BOTTOM)], _GRID)
        pen.text((across.at(tick), height - _BOTTOM + 8), f"{tick:,g}", _INK, small, anchor="ma")
    for tick in upwards.ticks:
        pen.line([(_LEFT, upwards.at(tick)), (width - _RIGHT, upwards.at(tick))], _GRID)
        pen.text((_LEFT - 8, upwards.at(tick)), f"{tick:g}", _INK, small, anchor="rm")
    pen.text((_LEFT, 16), title, _INK, large)
    pen.text((width - _RIGHT, height - 30), "submissions a second (open loop)", _INK, small, anchor="ra")
    pen.text((12, 46), "ms until the 202, 99th percentile, from when the request was due", _INK, small)
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        marks = [(across.at(rate), upwards.at(ms)) for rate, ms in sorted(line)]
        for each in pairwise(marks):
            pen.line(list(each), colour, 3)
        for x, y in marks:
            pen.ellipse([x - 5, y - 5, x + 5, y + 5], colour)
        y = _TOP + 20 + 22 * number
        pen.rectangle([_LEFT + 14, y - 5, _LEFT + 24, y + 5], colour)
        pen.text((_LEFT + 32, y), name, colour, small, anchor="lm")
    image.save(path)

"""What a process counts of itself, and Prometheus' text format, in which it tells it.

For a counter and a histogram with labels prometheus-client takes 2.6 µs; here they take 0.3, and every submission pays.
"""

import importlib.metadata
import platform
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST_SERIES = 1_000
"""Of one metric. What would be more is counted under OTHER, whoever named it."""

OTHER = "other"

RUN_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)
"""From tasks that do nothing to those that take an hour, and so for what they wait."""

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

LATENESS_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Labels = tuple[str, ...]


class Family:
    """One metric: a name, what it means, and a value for each combination of labels."""

    kind: ClassVar[str]
    lasts: ClassVar[bool]
    """It goes on counting what a process that has ended had counted."""

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.name = name
        self.meaning = meaning
        self.labels = labels
        self.values: dict[Labels, Any] = {}

    def key(self, labels: Labels) -> Labels:
        """Under which a new combination is kept."""
        return labels if len(self.values) < MOST_SERIES else (OTHER,) * len(labels)

    def add_up(self, values: Mapping[Labels, Any]) -> None:
        """Those of another process, to its own."""
        for labels, value in values.items():
            self.values[labels] = self.values.get(labels, 0) + value

    def lines(self) -> Iterator[str]:
        for labels, value in self.values.items():
            yield f"{self.name}{_braces(self.labels, labels)} {_number(value)}"


class Counter(Family):
    """Only ever grows."""

    kind, lasts = "counter", True

    def known(self, *firsts: str) -> Self:
        """Counts these from 0 on, by the one label that it has: `rate` cannot see the first count of a new series."""
        for each in firsts:
            self.values[each,] = 0
        return self

    def add(self, *labels: str, by: float = 1) -> None:
        try:
            self.values[labels] += by
        except KeyError:
            labels = self.key(labels)
            self.values[labels] = self.values.get(labels, 0) + by


class Gauge(Family):
    """As it is now."""

    kind, lasts = "gauge", False

    def set(self, *labels: str, to: float) -> None:
        self.values[labels if labels in self.values else self.key(labels)] = to

    def set_all(self, values: Mapping[Labels, float]) -> None:
        """These, and no others any more."""
        self.values.clear()
        for labels, value in values.items():
            self.set(*labels, to=value)


class Histogram(Family):
    """How often something took how long, in seconds."""

    kind, lasts = "histogram", True

    def __init__(self, name: str, meaning: str, *labels: str, buckets: tuple[float, ...]) -> None:
        super().__init__(name, meaning, *labels)
        self._buckets = buckets

    def observe(self, seconds: float, *labels: str) -> None:
        counts = self.values.get(labels) or self.cell(*labels)
        counts[bisect_left(self._buckets, seconds)] += 1
        counts[-1] += seconds

    def cell(self, *labels: str) -> list[float]:
        """Counts by bucket, and the sum: for whoever observes by itself, and does not make up labels each time."""
        found: list[float] = self.values.setdefault(self.key(labels), [0] * (len(self._buckets) + 2))
        return found

    def add_up(self, values: Mapping[Labels, Any]) -> None:
        for labels, theirs in values.items():
            ours = self.values.get(labels, [0] * len(theirs))
            self.values[labels] = [one + other for one, other in zip(ours, theirs, strict=True)]

    def lines(self) -> Iterator[str]:
        names = (*self.labels, "le")
        for labels, (*counts, total) in self.values.items():
            so_far = 0
            for bound, count in zip((*self._buckets, float("inf")), counts, strict=True):
                so_far += count
                yield f"{self.name}_bucket{_braces(names, (*labels, _number(bound)))} {so_far}"
            yield f"{self.name}_sum{_braces(self.labels, labels)} {_number(total)}"
            yield f"{self.name}_count{_braces(self.labels, labels)} {so_far}"


def version() -> str:
    try:
        return importlib.metadata.version("taskgate")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # run from its sources


def build_info() -> Gauge:
    build = Gauge("taskgate_build_info", "1; the labels say what runs.", "version", "python")
    build.set(version(), platform.python_version(), to=1)
    return build


def text(families: Iterable[Family]) -> bytes:
    """All of them, also those that have counted nothing yet."""
    parts = []
    for each in families:
        parts.append(f"# HELP {each.name} {_escaped(each.meaning)}\n# TYPE {each.name} {each.kind}\n")
        parts += [f"{line}\n" for line in each.lines()]
    return "".join(parts).encode()


def _braces(names: Iterable[str], values: Iterable[str]) -> str:
    said = ",".join(f'{name}="{_quoted(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{said}}}" if said else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))

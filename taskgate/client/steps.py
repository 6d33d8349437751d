"""What a call asks of its driver, one step at a time: so that the blocking client and the asyncio one share all logic.

A call is a generator of steps. Its driver carries each out and sends back what came of it, or throws the
`Unreachable` that did.
"""

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from taskgate.client.errors import Unsendable
from taskgate.network import HEADER_RULE, fits_header

T = TypeVar("T")

Method = Literal["GET", "POST", "DELETE"]
Params = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    """Of an open stream: b""."""
    url: str


@dataclass(frozen=True, slots=True)
class Send:
    """One request → its Answer."""

    method: Method
    path: str
    params: Params = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None
    held_s: float = 0.0
    """How long the service may hold it before it answers."""
    until: float = math.inf
    """By `time.monotonic()`: when nobody waits for the answer any more."""

    def __post_init__(self) -> None:
        _check(self.params, self.headers)


@dataclass(frozen=True, slots=True)
class Open:
    """Open an event stream → the Answer it begins with; only one of status 200 is a stream."""

    path: str
    params: Params
    headers: dict[str, str]
    silence_s: float
    """Silent for longer, it is dead."""

    def __post_init__(self) -> None:
        _check(self.params, self.headers)


def _check(params: Params, headers: Mapping[str, str]) -> None:
    """Raises Unsendable, rather than that a request fails halfway, as if nobody answered."""
    for name, value in headers.items():
        check_header(name, value)
    for name, value in params:
        if not is_unicode(f"{name}{value}"):
            raise Unsendable(f"{name}={value!r} is not Unicode")


def check_header(name: str, value: str) -> None:
    if not fits_header(value):
        raise Unsendable(f"{name} takes {HEADER_RULE}")


def is_unicode(text: str) -> bool:
    """Half of a surrogate pair has no UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


@dataclass(frozen=True, slots=True)
class Read:
    """→ the stream's next Message, None when it has ended. Any other step but Tell closes the stream."""


@dataclass(frozen=True, slots=True)
class Message:
    event: str
    data: str
    id: str
    """Its own, or the last before it."""
    retry_ms: int | None


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Tell:
    """Hand `value` to who iterates over this call."""

    value: Any


Step = Send | Open | Read | Pause | Tell
Steps = Generator[Step, Any, T]


class Run(Generic[T]):
    """A call under way. `step`: what its driver has to do next; None once it is over, with `outcome`."""

    outcome: T

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.step: Step | None = None
        self._go(lambda: next(steps))

    def went(self, outcome: Any) -> None:
        self._go(lambda: self._steps.send(outcome))

    def failed(self, error: Exception) -> None:
        self._go(lambda: self._steps.throw(error))

    def _go(self, on: Callable[[], Step]) -> None:
        self.step = None
        try:
            self.step = on()
        except StopIteration as stop:
            self.outcome = stop.value

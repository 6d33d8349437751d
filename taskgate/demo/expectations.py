"""What the demo expects, and whether it held."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Expectation(NamedTuple):
    text: str
    held: bool
    detail: str
    """What was seen."""


@dataclass(slots=True)
class Expectations:
    """Filled as the demo goes on; an empty one has not held."""

    seen: list[Expectation] = field(default_factory=list)

    def expect(self, text: str, held: bool, detail: str = "") -> None:
        self.seen.append(Expectation(text, held, detail))

    @property
    def held(self) -> bool:
        return bool(self.seen) and all(one.held for one in self.seen)

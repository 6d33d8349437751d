"""The ways to break the code that tests must notice: `mutations.toml`, read and applied."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "mutations.toml"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file, and the tests of which at least one must fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """The file as it would be, without its one `old`.

        Raises:
            ValueError: the code has changed, so that `old` is not there or not alone.
        """
        source = (root / self.file).read_text()
        if (found := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: `old` stands {found} times in {self.file}; bring the entry up to date")
        return source.replace(self.old, self.new)


def load() -> list[Mutation]:
    entries = tomllib.loads(DATA.read_text())["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]

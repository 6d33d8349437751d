"""What the other processes of this gateway have counted: any of them may be asked, and answers for all."""

import asyncio
import contextlib
import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from taskgate.metrics import Family

TELL_EVERY_S = 1.0

Told = dict[str, list[tuple[tuple[str, ...], float | list[float]]]]
"""Labels and values, by metric."""

_decode = msgspec.json.Decoder(Told).decode


class Siblings:
    """Each process keeps a file of its numbers in a folder of them all, at most a second old.

    What a dead one has counted stays in its file: a sum that became smaller would look like a restart of the whole.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / _name(os.getpid())
        self._told = b""

    async def run(self, families: Sequence[Family], collect: Callable[[], None]) -> None:
        """Tell until cancelled."""
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            collect()
            self.tell(families)

    def tell(self, families: Sequence[Family]) -> None:
        """Whole or not at all: others read it at any moment."""
        told = msgspec.json.encode({each.name: list(each.values.items()) for each in families})
        if told == self._told and self._path.exists():
            return
        partial = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: the others know what was told last
            self._folder.mkdir(mode=0o700, exist_ok=True)  # whoever cleans up /tmp may have found it old
            partial.write_bytes(told)
            partial.replace(self._path)
            self._told = told

    def added_up(self, families: Sequence[Family]) -> list[Family]:
        """Those of this process and of all others. Its own are told first: what was shown once is never taken back."""
        self.tell(families)
        sums = {each.name: copy.copy(each) for each in families}
        for each in sums.values():
            each.values = dict(each.values)
        for path in self._others():
            alive = path.name == _name(int(path.name.partition("-")[0]))
            for name, values in _told_in(path).items():
                if name in sums and (alive or sums[name].lasts):
                    sums[name].add_up(dict(values))
        return list(sums.values())

    def _others(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return [path for path in self._folder.iterdir() if path != self._path and not path.suffix]
        return []


def _told_in(path: Path) -> Told:
    """Nothing where a file is gone, or half of it is: the rest is told all the same."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return _decode(path.read_bytes())
    return {}


def _name(pid: int) -> str:
    """With when it began, as the kernel counts: pids come back. Without that: there is no such process."""
    with contextlib.suppress(OSError):
        return f"{pid}-{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    return str(pid)

"""`up --reload`: what to watch, and whether the handler modules load, tried in a process of their own."""

import asyncio
import importlib.util
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path

from taskgate.up.process import Process

_TRYOUT = Path(__file__).with_name("tryout.py")


async def loads(modules: Sequence[str], *, env: Mapping[str, str]) -> bool:
    """Whether they do; if not, the traceback is on standard error."""
    process = Process([sys.executable, "-P", str(_TRYOUT), *modules], env=env, tether=signal.SIGKILL)
    try:
        return await process.wait() == 0
    finally:
        process.kill()


def folders(modules: Iterable[str]) -> set[Path]:
    """The current folder and those of the modules, none inside another."""
    found = {Path.cwd()}
    sys.path.insert(0, "")
    try:
        for top in {module.partition(".")[0] for module in modules}:  # finding a submodule would import its package
            spec = importlib.util.find_spec(top)
            if spec and spec.submodule_search_locations:
                found |= {Path(place).absolute() for place in spec.submodule_search_locations}
            elif spec and spec.origin and Path(spec.origin).exists():
                found.add(Path(spec.origin).absolute().parent)
    finally:
        sys.path.remove("")
    return {one for one in found if not any(other in one.parents for other in found)}


async def changes(places: Iterable[Path], *, stop: asyncio.Event) -> AsyncIterator[list[Path]]:
    """Python files that were written, moved or removed, gathered until they settle."""
    from watchfiles import PythonFilter, awatch

    async for batch in awatch(*places, watch_filter=PythonFilter(), debounce=400, step=50, stop_event=stop):
        yield sorted({Path(path) for _, path in batch})

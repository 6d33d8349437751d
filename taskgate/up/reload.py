"""`up --reload`: what changes, and whether the handler modules load, tried in a process of their own."""

import asyncio
import importlib.util
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from taskgate.up.process import Process

_TRYOUT = Path(__file__).with_name("tryout.py")

logger = structlog.get_logger()

Changes = asyncio.Queue[list[Path]]


async def loads(modules: Sequence[str], *, env: Mapping[str, str]) -> bool:
    """Whether they do; if not, the traceback is on standard error."""
    process = Process([sys.executable, "-P", str(_TRYOUT), *modules], env=env, tether=signal.SIGKILL)
    try:
        return await process.wait() == 0
    finally:
        process.kill()


@asynccontextmanager
async def watching(modules: Iterable[str]) -> AsyncIterator[Changes]:
    """Python files that are written, moved or removed from now on, gathered until they settle."""
    changes: Changes = asyncio.Queue()
    watcher = asyncio.create_task(_watch(_folders(modules), changes))
    await asyncio.sleep(0)  # it watches from its first step on
    try:
        yield changes
    finally:
        watcher.cancel()
        await asyncio.wait([watcher])


async def _watch(folders: Iterable[Path], changes: Changes) -> None:
    from watchfiles import PythonFilter, awatch

    try:
        async for batch in awatch(*folders, watch_filter=PythonFilter(), debounce=400, step=50):
            changes.put_nowait(sorted({Path(path) for _, path in batch}))
    except (OSError, RuntimeError) as error:
        logger.error("changes are not seen any more: start again to reload", error=str(error))


def _folders(modules: Iterable[str]) -> set[Path]:
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

"""How each peer is started: its front by uvicorn, its workers by its own command line."""

from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.peers import environment
from loadtest.services import Service, uvicorn

Argv = list[str | Path]


def _front(python: Path, name: str) -> Argv:
    return [python, *uvicorn(f"{_module(name)}:app")]


def _module(name: str) -> str:
    return f"loadtest.peers.on_{name}"


def _saq(python: Path) -> Service:
    worker: Argv = [python, "-m", "saq", f"{_module('saq')}.settings", "--workers", "{processes}"]
    return Service("saq", _front(python, "saq"), worker)


def _dramatiq(python: Path) -> Service:
    worker: Argv = [python, "-m", "dramatiq", _module("dramatiq"), "-p", "{processes}", "-t", "8"]
    return Service("dramatiq", _front(python, "dramatiq"), worker)


def _background(python: Path) -> Service:
    return Service("background", _front(python, "background"), keeps=False)


def _arq(python: Path) -> Service:
    module = _module("arq")
    worker: Argv = [python, "-m", "arq", f"{module}.WorkerSettings", "--custom-log-dict", f"{module}.LOG"]
    return Service("arq", _front(python, "arq"), worker, single=True)


def _celery(python: Path) -> Service:
    worker: Argv = [python, "-m", "celery", "-A", f"{_module('celery')}:queue", "worker", "-c", "{processes}"]
    worker += ["-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    return Service("celery", _front(python, "celery"), worker)


def _rq(python: Path) -> Service:
    worker: Argv = [python, "-m", "rq.cli", "worker-pool", "-q", "-n", "{processes}", "-w", "rq.worker.SimpleWorker"]
    worker += ["-u", "{redis}"]
    return Service("rq", _front(python, "rq"), worker)


_PEERS: dict[str, Callable[[Path], Service]] = {
    "saq": _saq,
    "dramatiq": _dramatiq,
    "background": _background,
    "arq": _arq,
    "celery": _celery,
    "rq": _rq,
}
NAMES = tuple(_PEERS)
USUAL = ("saq", "dramatiq", "background")
"""The fastest of them, and the one without a queue: what budgets are held against."""


def peers(names: Sequence[str]) -> list[Service]:
    """Building the environments that they need first.

    Raises:
        OSError: one could not be built.
    """
    return [_PEERS[name](environment.ensure("arq" if name == "arq" else "")) for name in names]

"""A child: the process in which handlers run. Started by `workers.children` alone, as `python -m workers.child`."""

import contextlib
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType

import msgspec

from taskgate import handlers
from taskgate.platform import adopt_orphans, die_with
from workers import wire
from workers.async_child import AsyncChild
from workers.attempts import ChildAttempt
from workers.dumps import STACK_SIGNAL
from workers.slot import GC_NS, Slot
from workers.streams import Streams
from workers.sync_child import SyncChild

_OOM_SCORE_MORE = 500
_NICE_MORE = 5


def main() -> None:
    start = msgspec.json.decode(sys.argv[1], type=wire.Start)
    die_with(start.parent, signal.SIGKILL)
    adopt_orphans()
    _yield_to_others()
    _own_environment(start)
    streams = Streams(
        kind=start.spec.kind, mark=start.mark.encode(), readers=start.readers, service=os.fdopen(start.log, "w")
    )
    streams.take_logs(start.spec.log_format, start.spec.log_level)
    channel = socket.socket(fileno=start.socket)
    slot = Slot(start.slot, start.spec.slots)
    threads = threading.active_count()

    def arm() -> None:
        # Off first: switching on what faulthandler believes to be on would do nothing.
        faulthandler.disable()
        faulthandler.unregister(STACK_SIGNAL)
        faulthandler.enable(file=start.stack, all_threads=True)
        faulthandler.register(STACK_SIGNAL, file=start.stack, all_threads=True, chain=False)

    # What is there while faulthandler is not: a request for a stack that comes then must not end the process.
    signal.signal(STACK_SIGNAL, _not_now)
    arm()
    _count_gc_pauses(slot)
    ChildAttempt.keys_hold = start.spec.keys_hold
    kind = SyncChild if start.spec.kind == "sync" else AsyncChild
    try:
        registry = handlers.load(start.spec.handlers)
        child = kind(channel=channel, slot=slot, handlers=registry, spec=start.spec, arm=arm, streams=streams)
        child.start()
        streams.remember()
    except Exception:  # noqa: BLE001 — whatever the handlers' modules do is told, not guessed from an exit code
        wire.send(channel, wire.StartFailed(traceback.format_exc()))
        sys.exit(1)
    gc.collect()
    gc.freeze()
    try:
        child.run()
    except BrokenPipeError:
        pass  # the supervisor is gone, and with it whoever wants to know
    if threading.active_count() > threads:
        # Leaving normally would wait for what handlers left running.
        sys.stderr.flush()
        os._exit(0)


def _not_now(_signal: int, _frame: FrameType | None) -> None:
    """A function of our own: what a task sets instead, also to ignore it, is seen and taken back."""


def _yield_to_others() -> None:
    """When memory or CPU are short, a task goes before the processes that keep the promises."""
    os.nice(_NICE_MORE)
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # some sandboxes have no such file
        score.write_text(str(min(1000, int(score.read_text()) + _OOM_SCORE_MORE)))


def _own_environment(start: wire.Start) -> None:
    """What the child needed to start is not passed on to what handlers start; their modules are found as usual."""
    for fd in (start.socket, start.slot, start.stack, start.log, *start.readers):
        os.set_inheritable(fd, False)
    os.environ.pop("PYTHONPATH", None)
    if start.python_path is not None:
        os.environ["PYTHONPATH"] = start.python_path
    if start.root in sys.path:
        # Behind everything else: what lies beside our code must not hide the handlers' own modules.
        sys.path.remove(start.root)
        sys.path.append(start.root)
    sys.path.insert(0, str(Path.cwd()))


def _count_gc_pauses(slot: Slot) -> None:
    began = 0
    words = slot.words
    clock = time.perf_counter_ns

    def count(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = clock()
        else:
            words[GC_NS] += clock() - began

    gc.callbacks.append(count)


if __name__ == "__main__":
    main()

"""Output of a child: whose it is, in which order, all of it up to a death."""

from collections.abc import Callable

from tests.workers.conftest import Watched
from workers import wire

Child = Callable[..., Watched]
PRINTING = "tests.workers.printing_jobs"


def printed(watched: Watched, seq: int, *streams: str) -> bytes:
    """What was read of a task so far, in order."""
    return b"".join(one.data for one in watched.of(wire.Printed, seq) if not streams or one.stream in streams)


async def test_everything_that_a_sync_task_writes_is_captured(child: Child) -> None:
    watched = await child(handlers=(PRINTING,)).ready()
    done = await watched.run("prints")
    assert done.outcome == "succeeded", done
    print([m for m in watched.messages if isinstance(m, wire.Printed)])

"""A task, or a program that it starts, sets the pipes that all of a child share to non-blocking."""

from tests.workers.test_output import HANDLERS, Child, streams
from workers import wire

MIB = 1 << 20


async def test_the_task_right_behind_loses_nothing(child: Child) -> None:
    watched = await child(handlers=HANDLERS, slots=2).ready()
    watched.hand("misuses_streams", "nonblocking")
    seq = watched.hand("floods_both", 1)

    assert (await watched.done(seq)).outcome == "succeeded"
    assert {stream: len(text) for stream, text in streams(watched, seq).items()} == {"stdout": MIB, "stderr": MIB}


async def test_when_the_child_looks_it_is_undone_also_for_programs(child: Child) -> None:
    watched = await child(handlers=HANDLERS).ready()
    await watched.run("misuses_streams", "nonblocking")
    await watched.until(lambda: watched.of(wire.Unclean))
    assert watched.of(wire.Unclean)[-1].undone == ["standard streams"]
    seq = watched.hand("a_program_floods", 1)

    assert (await watched.done(seq)).outcome == "succeeded"
    assert {stream: len(text) for stream, text in streams(watched, seq).items()} == {"stdout": MIB}

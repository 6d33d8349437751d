"""Whom the death of a child is charged to, of the tasks that it had received."""

from collections.abc import Sequence
from signal import SIGKILL
from typing import NamedTuple

from workers.children import ChildProcess, Exit
from workers.dumps import parse
from workers.holdings import Holding


class Verdict(NamedTuple):
    guilty: list[Holding]
    known: bool
    """Whether the others are innocent; else each of them is a suspect."""


def judge(child: ChildProcess, held: Sequence[Holding], how: Exit, *, paused: bool) -> Verdict:
    """A death of our making is charged to those it was meant for, any other to the task that was being stepped.

    `paused`: the guard holds the groups, so a SIGKILL that is not ours is the guard's, at the end of the pause.
    """
    if child.killed and how.signal == SIGKILL and not child.blocked:
        return Verdict([each for each in held if each.killed], known=True)
    if child.spec.kind == "sync" or child.spec.alone:
        return Verdict(list(held), known=True)
    if child.blocked or child.garbage:  # who is noted now need not be who sent it
        return Verdict([], known=False)
    if paused and how.signal == SIGKILL:
        return Verdict(list(held), known=True)
    if how.stack and not parse(how.stack).struck_main:  # in a thread of one of its tasks: the noted one or another
        return Verdict([], known=False)
    guilty = [each for each in held if each.seq == child.noted()]
    return Verdict(guilty, known=bool(guilty))

"""Tracks: evidence is of whole windows, of the task itself, and only of time in which somebody looked."""

import os
from collections.abc import Callable, Iterator

import pytest

from workers.health import Evidence
from workers.procstat import Numbers
from workers.slot import Progress, Sample, TaskSample
from workers.tracks import UNWATCHED_NS, Track

MS = 1_000_000
BEGUN = 10_000 * MS


class Watched:
    """A track of one child whose numbers, slot and clock the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = BEGUN
        self.numbers: Numbers | None = Numbers(0, 0, 1)
        self.helpers_ms = 0
        self.tasks = {1: TaskSample(1, BEGUN, None, None)}
        self.noted = self.steps = 0
        self.track = Track(os.getpid())
        monkeypatch.setattr("workers.tracks.boot_ns", lambda: self.now_ns)
        monkeypatch.setattr(self.track.stat, "sample", lambda: self.numbers)
        monkeypatch.setattr(self.track.stat, "started_cpu_ms", lambda: self.helpers_ms)

    def starts(self) -> None:
        self.track.starts(alone=True)

    def passes(self, ms: int, *, cpu: int = 0, wait: int = 0) -> None:
        self.now_ns += ms * MS
        if self.numbers is not None:
            self.numbers = Numbers(self.numbers.cpu_ms + cpu, (self.numbers.wait_ms or 0) + wait, 1)

    def look(
        self,
        seq: int = 1,
        *,
        steps: int = 0,
        shared: bool = False,
        paused: bool = False,
        close: bool = True,
        heard_ns: int = 0,
    ) -> Evidence | None:
        sample = Sample(1, 1, BEGUN, self.noted, self.steps, 0, self.tasks)
        self.track.look(sample, paused=paused)
        found = self.track.evidence(sample, self.tasks[seq], steps=steps, shared=shared, heard_ns=heard_ns)
        if close:
            self.track.close_window(sample)
        return found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched(monkeypatch)
    yield watched
    watched.track.close()


def test_a_window_is_judged_when_it_is_over(watched: Watched) -> None:
    watched.starts()
    for _ in range(3):
        watched.passes(300, cpu=100, wait=50)
        assert watched.look() is None
    watched.passes(300, cpu=100, wait=50)
    found = watched.look()
    assert found is not None
    assert (found.interval_ms, found.cpu_ms, found.cpu_wait_ms, found.quiet_ms) == (1200, 400, 200, 1200)
    watched.passes(300, cpu=100)
    assert watched.look() is None


def test_a_task_is_not_judged_by_what_ran_before_it(watched: Watched) -> None:
    watched.starts()
    watched.passes(800, cpu=800)
    watched.tasks = {2: TaskSample(2, watched.now_ns, None, None)}
    watched.passes(300)
    assert watched.look(2) is None
    watched.passes(1000)
    found = watched.look(2)
    assert found is not None
    assert found.cpu_ms == 0


def test_progress_ends_the_silence(watched: Watched) -> None:
    watched.starts()
    watched.passes(900)
    watched.tasks = {1: TaskSample(1, BEGUN, Progress(1, None, "", "", "", watched.now_ns), None)}
    watched.passes(300)
    found = watched.look()
    assert found is not None
    assert found.quiet_ms == 300


def test_whatever_it_says_ends_the_silence(watched: Watched) -> None:
    watched.starts()
    watched.passes(1200)
    found = watched.look(heard_ns=watched.now_ns - 200 * MS)
    assert found is not None
    assert found.quiet_ms == 200


def test_a_pause_is_told_at_once_and_afterwards_everything_is_measured_anew(watched: Watched) -> None:
    watched.starts()
    watched.passes(10)
    assert (found := watched.look(paused=True))
    assert found.paused
    for _ in range(100):
        watched.passes(1000)
        watched.look(paused=True)
    watched.passes(900)
    assert watched.look() is None
    watched.passes(200)
    assert (found := watched.look())
    assert (found.paused, found.quiet_ms) == (False, 1100)


def test_time_in_which_nobody_looked_proves_nothing(watched: Watched) -> None:
    """The supervisor was frozen, or the machine asleep."""
    watched.starts()
    watched.passes(UNWATCHED_NS // MS + 1)
    assert watched.look() is None
    watched.passes(1000)
    assert (found := watched.look())
    assert found.quiet_ms == 1000


def test_what_is_not_known_is_none(watched: Watched) -> None:
    watched.starts()
    watched.numbers = None
    watched.passes(1000)
    assert (found := watched.look())
    assert (found.cpu_ms, found.cpu_wait_ms) == (None, None)


@pytest.mark.parametrize(
    ("mine", "noted", "cpu_ms"),
    [
        ((5, 0), 0, 0),
        ((6, 0), 0, 900),
        ((5, 1), 0, 900),
        ((5, 0), 1, 900),
    ],
    ids=["neither", "made steps", "has a call in a thread", "is being stepped"],
)
def test_an_async_task_used_cpu_if_it_did_something(
    watched: Watched, mine: tuple[int, int], noted: int, cpu_ms: int
) -> None:
    watched.starts()
    watched.steps, watched.noted = 99, noted
    watched.tasks = {
        1: TaskSample(1, BEGUN, None, None, steps=mine[0], calls=mine[1]),
        2: TaskSample(2, BEGUN, None, None, steps=90),
    }
    watched.passes(1000, cpu=900)
    assert (found := watched.look(steps=5, shared=True))
    assert (found.cpu_ms, found.loop_taken) == (cpu_ms, False)


def test_who_is_alone_in_an_event_loop_used_all_of_its_cpu(watched: Watched) -> None:
    watched.starts()
    watched.passes(1000, cpu=900)
    assert (found := watched.look(shared=True))
    assert found.cpu_ms == 900


def test_a_loop_that_one_step_keeps_is_taken_from_the_others(watched: Watched) -> None:
    watched.starts()
    watched.noted = 2
    watched.tasks |= {2: TaskSample(2, BEGUN, None, None)}
    watched.passes(1000, cpu=900)
    assert (mine := watched.look(1, shared=True, close=False))
    assert (theirs := watched.look(2, shared=True))
    assert (mine.loop_taken, theirs.loop_taken) == (True, False)


@pytest.mark.parametrize("works", [True, False])
def test_what_a_task_has_started_works_for_it(watched: Watched, works: bool) -> None:
    watched.starts()
    look: Callable[[], object] = watched.look
    look()
    assert watched.track.helpers_work() is False, "there is none"
    watched.helpers_ms = 50
    watched.passes(5000)
    look()
    assert watched.track.helpers_work() is None, "it cannot be told from one look"
    watched.helpers_ms += 400 * works
    watched.passes(1000)
    look()
    assert watched.track.helpers_work() is works

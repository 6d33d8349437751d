"""The watch on other supervisors: who is dead, and what begins its time anew."""

from taskgate.contract.models import BeatValue
from workers.watch import Watch

ME = BeatValue(1, 1000)


def test_whose_beat_stood_still_for_its_lease_is_dead() -> None:
    watch, silent = Watch("me"), BeatValue(7, 2000)
    assert watch.look({"me": ME, "other": silent}, 10.0) == {}
    assert watch.next_verdict_s() == 12.0
    assert watch.look({"me": ME, "other": silent}, 11.999) == {}
    assert watch.look({"me": ME, "other": silent}, 12.0) == {"other": silent}


def test_each_is_judged_by_the_lease_that_it_published() -> None:
    watch, beats = Watch("me"), {"short": BeatValue(1, 500), "long": BeatValue(1, 60_000)}
    watch.look(beats, 0.0)
    assert watch.next_verdict_s() == 0.5
    assert watch.look(beats, 59.9) == {"short": beats["short"]}


def test_a_beat_begins_its_time_anew() -> None:
    watch = Watch("me")
    watch.look({"other": BeatValue(7, 1000)}, 0.0)
    watch.look({"other": BeatValue(8, 1000)}, 0.75)
    assert watch.look({"other": BeatValue(8, 1000)}, 1.5) == {}
    assert watch.look({"other": BeatValue(8, 1000)}, 1.75) == {"other": BeatValue(8, 1000)}


def test_a_gap_in_the_contact_begins_everybodys_time_anew() -> None:
    """While Redis was away nobody could beat."""
    watch, beats = Watch("me"), {"other": BeatValue(7, 1000)}
    watch.look(beats, 0.0)
    watch.contact_lost()
    assert watch.look(beats, 1.5) == {}
    assert watch.look(beats, 2.5) == beats


def test_who_left_and_came_back_is_seen_for_the_first_time() -> None:
    watch, beats = Watch("me"), {"other": BeatValue(7, 1000)}
    watch.look(beats, 0.0)
    watch.look({}, 0.5)
    assert watch.look(beats, 1.5) == {}


def test_nobody_watches_itself() -> None:
    watch = Watch("me")
    watch.look({"me": ME}, 0.0)
    assert watch.look({"me": ME}, 100.0) == {}
    assert watch.next_verdict_s() is None


def test_a_beat_that_is_told_counts_from_then() -> None:
    """So a death is known a lease after the last beat, not a lease after our own next one."""
    watch = Watch("me")
    watch.look({"other": BeatValue(7, 1000)}, 0)
    watch.heard("other", BeatValue(8, 1000), 0.2)
    assert watch.look({"other": BeatValue(8, 1000)}, 0.3) == {}
    assert watch.next_verdict_s() == 1.2
    assert watch.look({"other": BeatValue(8, 1000)}, 1.2) == {"other": BeatValue(8, 1000)}


def test_a_beat_told_late_or_of_nobody_watched_changes_nothing() -> None:
    watch = Watch("me")
    watch.heard("unseen", BeatValue(7, 1000), 0)
    assert watch.next_verdict_s() is None
    watch.look({"other": BeatValue(7, 1000)}, 0)
    watch.heard("other", BeatValue(7, 1000), 0.5)
    assert watch.next_verdict_s() == 1.0

"""Typical run times: by type, robust, and of late."""

from workers.run_times import RunTimes


def test_types_are_kept_apart_and_nothing_is_said_of_what_never_ran() -> None:
    times = RunTimes()
    assert times.typical_ms() == {}
    times.add("a", 100)
    times.add("b", 0)
    assert times.typical_ms() == {"a": 100, "b": 1}


def test_one_long_run_hardly_moves_it() -> None:
    times = RunTimes()
    for run_ms in [100] * 20 + [10_000]:
        times.add("a", run_ms)
    assert 100 < times.typical_ms()["a"] < 200


def test_it_follows_what_runs_now() -> None:
    times = RunTimes()
    for run_ms in [10] * 1000 + [1000] * 50:
        times.add("a", run_ms)
    assert 900 < times.typical_ms()["a"] <= 1000

"""The census: what it counts, and that an attempt goes on where the one before was killed."""

from pathlib import Path

import pytest

from taskgate import Fail
from taskgate.testing import attempt
from workers.handlers.census import CensusRequest, census, merged


def test_it_counts_lines_names_and_functions_of_every_file(library: Path) -> None:
    seen = attempt()
    result = census(CensusRequest(), seen)

    sources = [path.read_text() for path in library.rglob("module*.py")]
    assert result.files == 10
    assert result.lines == sum(len(source.splitlines()) for source in sources)
    assert result.comments == sum(range(1, 11))
    assert (result.functions, result.classes) == (10, 10)
    assert result.names["total"] == 10 * 2 + 2 * result.comments
    assert not {"def", "class", "return"} & set(result.names)
    assert result.packages["package"].files == 5
    assert "test" not in result.packages


def test_the_longest_functions_come_first(library: Path) -> None:
    longest = census(CensusRequest(top=3), attempt()).longest

    assert [one.name for one in longest] == ["work9", "work8", "work7"]
    assert (longest[0].file, longest[0].line, longest[0].lines) == ("package/module9.py", 5, 12)


def test_progress_goes_file_by_file_to_the_end(library: Path) -> None:
    seen = attempt()
    census(CensusRequest(), seen)

    counting = [one for one in seen.reported if one.stage == "counting"]
    assert [(one.current, one.total) for one in counting] == [(n, 10) for n in range(1, 11)]
    assert counting[0].message.endswith(".py")


def test_a_second_attempt_goes_on_at_the_checkpoint_and_finds_the_same(library: Path) -> None:
    first, second = attempt(), attempt(number=2)
    whole = census(CensusRequest(checkpoint_every=4), first)
    second.resume_from = first.checkpoints[0]
    resumed = census(CensusRequest(checkpoint_every=4), second)

    assert resumed.resumed_at == 4
    assert second.reported[1].current == 5
    assert resumed.model_dump(exclude={"resumed_at"}) == whole.model_dump(exclude={"resumed_at"})


@pytest.mark.parametrize("change", [{"of": 11}, {"census": {"python": "2.7.18"}}])
def test_a_checkpoint_over_other_files_is_not_gone_on_with(library: Path, change: dict[str, object]) -> None:
    first = attempt()
    whole = census(CensusRequest(checkpoint_every=4), first)
    result = census(CensusRequest(), attempt(number=2, resume_from=first.checkpoints[0] | change))

    assert result == whole


def test_shards_make_up_the_whole(library: Path) -> None:
    whole = census(CensusRequest(), attempt())
    together = merged([census(CensusRequest(shard=shard, shards=3), attempt()) for shard in range(3)])

    assert together == whole


def test_a_limit_bounds_the_work(library: Path) -> None:
    assert census(CensusRequest(limit=3), attempt()).files == 3


def test_a_file_that_is_not_python_is_skipped_and_named(library: Path) -> None:
    (library / "broken.py").write_text("def (:\n")
    result = census(CensusRequest(), attempt())

    assert result.files == 10
    assert result.skipped == ["broken.py: SyntaxError"]


def test_a_shard_without_files_fails_for_good(library: Path) -> None:
    with pytest.raises(Fail, match="shard 20 of 30"):
        census(CensusRequest(shard=20, shards=30), attempt())


def test_the_real_library_can_be_counted() -> None:
    result = census(CensusRequest(limit=40), attempt())

    assert result.files + len(result.skipped) == 40
    assert result.lines > 1000

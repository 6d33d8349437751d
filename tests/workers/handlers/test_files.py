"""Handlers that make files: what they make, where they may, and what they say without their optional package."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from taskgate import Fail
from taskgate.testing import attempt
from workers.handlers import output
from workers.handlers.census import Census, Function, Package
from workers.handlers.chart import ChartRequest, chart
from workers.handlers.report import ReportRequest, report
from workers.handlers.thumbnails import ThumbnailsRequest, thumbnails

CENSUS = Census(
    files=90,
    lines=4095,
    functions=90,
    names={"self": 12, "other": 3},
    packages={f"package{number}": Package(files=1, lines=number, functions=1) for number in range(90)},
    longest=[Function(lines=40, name="work", file="package1.py", line=7)],
)


def test_thumbnails_have_the_wanted_sizes_and_are_listed(files: Path) -> None:
    seen = attempt()
    made = thumbnails(ThumbnailsRequest(folder="pictures", images=2, sizes=[32, 64]), seen)

    for one in made:
        with Image.open(one.file) as picture:
            assert picture.size == (one.width, one.height)
        assert Path(one.file).stat().st_size == one.size_bytes
    assert [one.width for one in made] == [32, 64, 32, 64]
    assert {path.name for path in (files / "pictures").iterdir()} == {Path(one.file).name for one in made}
    assert (seen.reported[-1].current, seen.reported[-1].total) == (4, 4)


def test_the_same_seed_paints_the_same_landscape(files: Path) -> None:
    def painted(folder: str, seed: int) -> bytes:
        (one,) = thumbnails(ThumbnailsRequest(folder=folder, images=1, sizes=[64], seed=seed), attempt())
        return Path(one.file).read_bytes()

    assert painted("a", 1) == painted("b", 1) != painted("c", 2)


def test_the_chart_names_the_largest_packages_only(files: Path) -> None:
    made = chart(ChartRequest(folder="a", census=[CENSUS], packages=3), attempt())
    drawn = Path(made.file).read_text()

    assert made.file.endswith(".svg")
    assert [name in drawn for name in ("package89", "package87", "package86")] == [True, True, False]


def test_a_report_has_as_many_pages_as_it_says_and_reports_each(files: Path) -> None:
    seen = attempt()
    made = report(ReportRequest(folder="a", census=[CENSUS]), seen)
    content = Path(made.file).read_bytes()

    assert content.startswith(b"%PDF")
    assert made.pages == 6 == content.count(b"/Type /Page\n")  # cover, functions, names, three of packages
    assert [(one.current, one.total, one.unit) for one in seen.reported] == [(n, 6, "pages") for n in range(1, 7)]


@pytest.mark.parametrize("name", ["..", "../beside", "/etc", "a/../../beside", "nul\0"])
def test_nothing_is_written_outside_of_the_root(files: Path, name: str) -> None:
    with pytest.raises(Fail, match="not below the output folder"):
        output.folder(name)
    assert not files.exists()


def test_a_link_does_not_lead_outside_of_the_root(files: Path, tmp_path: Path) -> None:
    files.mkdir()
    (files / "link").symlink_to(tmp_path)
    with pytest.raises(Fail, match="not below the output folder"):
        output.folder("link/beside")
    assert not (tmp_path / "beside").exists()


def test_a_root_that_cannot_be_written_is_named(files: Path) -> None:
    files.write_text("a file, not a folder")
    with pytest.raises(Fail, match=output.ROOT_VARIABLE):
        output.folder("a")


@pytest.mark.parametrize(
    ("package", "run"),
    [
        ("PIL", lambda: thumbnails(ThumbnailsRequest(folder="a"), attempt())),
        ("reportlab", lambda: chart(ChartRequest(folder="a", census=[CENSUS]), attempt())),
        ("reportlab", lambda: report(ReportRequest(folder="a", census=[CENSUS]), attempt())),
    ],
)
def test_a_missing_package_is_named_together_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, files: Path, package: str, run: Callable[[], object]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Fail, match=r"taskgate\[demo\]"):
        run()

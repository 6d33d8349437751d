"""docs/guarantees.md: no promise without a test that exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guarantees.md"
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
HEAD = ["promise", "not promised", "test"]


def rows() -> list[list[str]]:
    """Cells of every table; a `|` within code is written `\\|`."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row != HEAD and not set("".join(row)) <= set("- ")]


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def missing(said: str) -> list[str]:
    """Of what a row names as its tests: those that are not there."""
    wrong, folder = [], Path()
    named = re.findall(r"`([^`]+)`", said)
    for name in named:
        if name.startswith("make "):
            wrong += [name] if name.split()[1] not in TARGETS else []
        elif re.fullmatch(r"[\w/]*\w\.py(::\w+)?", name):
            path, _, function = name.partition("::")
            folder = (ROOT / path).parent if "/" in path else folder
            there = folder / Path(path).name
            if not there.is_file() or (function and function not in functions(there)):
                wrong.append(name)
        elif name.endswith("/"):
            wrong += [] if (ROOT / name).is_dir() else [name]
    return wrong if named else ["no test"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:50])
def test_every_promise_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == len(HEAD), "a row has a promise, what is not promised, and a test"
    promise, _, tests = row
    assert promise.endswith((".", ":")), "a promise is a sentence"
    assert not missing(tests)


def test_what_does_not_exist_is_found() -> None:
    assert missing("nobody looks") == ["no test"]
    assert missing("`make chaos`; `tests/system/test_chaos.py`, `test_nothing.py`") == ["test_nothing.py"]
    here = "tests/architecture/test_guarantees.py"
    assert not missing(f"`{here}::test_what_does_not_exist_is_found`")
    for wrong in (f"{here}::test_of_nothing", "make coffee", "tests/nowhere/", "tests/test_nothing.py"):
        assert missing(f"`{wrong}`") == [wrong]


def test_every_chapter_is_in_the_list_at_the_top() -> None:
    text = PAGE.read_text()
    chapters = re.findall(r"^## (.+)$", text, re.MULTILINE)
    listed = re.findall(r"^\* \[(.+)\]\(#(.+)\)$", text, re.MULTILINE)
    assert [name for name, _ in listed] == chapters
    assert all(anchor == name.lower().replace(",", "").replace(" ", "-") for name, anchor in listed)

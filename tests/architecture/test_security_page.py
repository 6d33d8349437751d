"""docs/security.md: no threat without an answer and a test that exists; and what only the code's text can show."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_guarantees import missing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/security.md"
HEAD = ["threat", "what stands against it", "what does not", "test"]
DANGEROUS_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "yaml", "xml", "telnetlib", "ftplib"}
DANGEROUS_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp"}


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if len(row) == len(HEAD) and row != HEAD and not set("".join(row)) <= set("- ")]


def test_the_tables_are_read() -> None:
    chapters = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    listed = re.findall(r"^\* \[(.+)\]", PAGE.read_text(), re.MULTILINE)
    assert chapters == listed
    assert len(rows()) >= 20


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:50])
def test_every_threat_has_an_answer_and_tests_that_exist(row: list[str]) -> None:
    threat, stands, _, tests = row
    assert threat.endswith(".")
    assert stands
    assert not missing(tests)


def product() -> Iterator[tuple[Path, ast.AST]]:
    for package in ("taskgate", "app", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                yield path.relative_to(ROOT), node


def name_of(func: ast.expr) -> str:
    match func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return f"{module}.{name}"
    return ""


def test_nothing_makes_code_of_data() -> None:
    """Neither a reader of data that can run code, nor a shell, nor code made from text."""
    found = set()
    for path, node in product():
        match node:
            case ast.Import(names=names):
                found |= {(path, one.name) for one in names if one.name.partition(".")[0] in DANGEROUS_MODULES}
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in DANGEROUS_MODULES:
                found.add((path, module))
            case ast.Call(func=func, keywords=keywords):
                if (called := name_of(func)) in DANGEROUS_CALLS:
                    found.add((path, called))
                if any(one.arg == "shell" for one in keywords):
                    found.add((path, f"{called}(shell=…)"))
    assert found == set()

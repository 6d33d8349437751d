"""`demo.census`: counts the lines, names and functions of Python's own standard library."""

import ast
import heapq
import io
import keyword
import sys
import sysconfig
import time
import tokenize
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from taskgate import Attempt, Fail, handler

_NOT_COUNTED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
_NAMES_KEPT = 2000
"""Rarer names are dropped at a checkpoint, so that it stays small; the frequent ones are exact."""


class CensusRequest(BaseModel, extra="forbid"):
    """Which part of the library to count: every `shards`-th file from `shard` on, at most `limit` of them."""

    shard: int = Field(default=0, ge=0)
    shards: int = Field(default=1, ge=1, le=1000)
    limit: int | None = Field(default=None, ge=1)
    top: int = Field(default=20, ge=1, le=200, description="how many names and functions the result lists")
    checkpoint_every: int = Field(default=25, ge=1, description="files between two checkpoints")
    pause_ms: int = Field(default=0, ge=0, le=1000, description="rest after each file: no machine is through at once")


class Package(BaseModel):
    files: int = 0
    lines: int = 0
    functions: int = 0


class Function(BaseModel):
    lines: int
    name: str
    file: str
    line: int


class Census(BaseModel):
    """What was counted; also the checkpoint, and what `demo.chart` and `demo.report` draw."""

    python: str = sys.version.split()[0]
    files: int = 0
    lines: int = 0
    comments: int = 0
    functions: int = 0
    classes: int = 0
    names: dict[str, int] = {}
    packages: dict[str, Package] = {}
    longest: list[Function] = []
    skipped: list[str] = []
    resumed_at: Annotated[int, Field(description="files that an earlier attempt had counted")] = 0


class _Counted(BaseModel):
    """A checkpoint: holds only for the same files, since the next attempt may run under another Python."""

    done: int
    of: int
    census: Census


@handler("demo.census", timeout_s=300, max_attempts=3, retry_base_s=0.5)
def census(payload: CensusRequest, attempt: Attempt) -> Census:
    """Counts lines, names and functions of the standard library, file by file, resuming where it was killed."""
    attempt.progress(0, None, unit="files", stage="listing")
    root = Path(sysconfig.get_paths()["stdlib"])
    files = _files(root)[payload.shard :: payload.shards][: payload.limit]
    if not files:
        raise Fail(f"no Python files in {root} for shard {payload.shard} of {payload.shards}")
    done, total = _resumed(attempt.resume_from, of=len(files))
    names = Counter(total.names)
    for index, file in enumerate(files[done:], done):
        _count(file, root, total, names, payload.top)
        time.sleep(payload.pause_ms / 1000)
        attempt.progress(index + 1, len(files), unit="files", stage="counting", message=str(file.relative_to(root)))
        if (index + 1) % payload.checkpoint_every == 0:
            names = total.names = Counter(dict(names.most_common(_NAMES_KEPT)))
            attempt.checkpoint(_Counted(done=index + 1, of=len(files), census=total).model_dump(mode="json"))
    attempt.progress(len(files), len(files), unit="files", stage="adding up", message=f"{total.lines:,} lines")
    total.names = dict(names.most_common(payload.top))
    return total


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.py") if not _NOT_COUNTED & set(path.relative_to(root).parts))


def _resumed(checkpoint: Any, *, of: int) -> tuple[int, Census]:
    if checkpoint is None:
        return 0, Census()
    counted = _Counted.model_validate(checkpoint)
    if counted.of != of or counted.census.python != sys.version.split()[0]:
        return 0, Census()
    counted.census.resumed_at = counted.done
    return counted.done, counted.census


def merged(parts: Sequence[Census], *, top: int = 20) -> Census:
    """One census of several shards of the same library; its names are those that every shard listed high enough."""
    total = Census(python=parts[0].python)
    names, packages = Counter[str](), dict[str, Package]()
    for part in parts:
        total.files += part.files
        total.lines += part.lines
        total.comments += part.comments
        total.functions += part.functions
        total.classes += part.classes
        total.skipped += part.skipped
        names.update(part.names)
        for name, package in part.packages.items():
            _add(packages.setdefault(name, Package()), package)
    total.names, total.packages = dict(names.most_common(top)), packages
    total.longest = _longest([function for part in parts for function in part.longest], top)
    return total


def _add(total: Package, part: Package | Census) -> None:
    total.files += part.files
    total.lines += part.lines
    total.functions += part.functions


def _count(file: Path, root: Path, total: Census, names: Counter[str], top: int) -> None:
    relative = file.relative_to(root)
    try:
        source = file.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in somebody else's strings
            tree = ast.parse(source)
        comments, seen = _tokens(source)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError) as error:
        total.skipped.append(f"{relative}: {type(error).__name__}")
        return
    names.update(seen)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = source.count(b"\n") + (not source.endswith(b"\n") and bool(source))
    package = total.packages.setdefault(relative.parts[0].removesuffix(".py"), Package())
    for part in (total, package):
        part.files += 1
        part.lines += lines
        part.functions += len(functions)
    total.comments += comments
    total.classes += sum(isinstance(node, ast.ClassDef) for node in nodes)
    floor = total.longest[-1].lines if len(total.longest) == top else 0
    longer = [_function(node, relative) for node in functions if _length(node) > floor]
    total.longest = _longest([*total.longest, *longer], top)


def _tokens(source: bytes) -> tuple[int, Counter[str]]:
    comments, names = 0, Counter[str]()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            names[token.string] += 1
    return comments, names


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, file: Path) -> Function:
    return Function(lines=_length(node), name=node.name, file=str(file), line=node.lineno)


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _longest(functions: list[Function], top: int) -> list[Function]:
    return heapq.nlargest(top, functions, key=lambda function: function.lines)

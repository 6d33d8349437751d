"""The list of mutations fits today's code; `make mutations` runs them."""

import ast
from collections import Counter
from functools import cache

import pytest
from redis.asyncio import Redis

from taskgate.contract.script import FOLDER, PRELUDE
from tests.mutations.catalog import ROOT, Mutation, load

MUTATIONS = load()


def by_name(mutation: Mutation) -> str:
    return mutation.name


@pytest.mark.parametrize("mutation", MUTATIONS, ids=by_name)
async def test_a_mutation_fits_the_code_and_can_be_loaded(mutation: Mutation, redis_client: Redis) -> None:
    """What cannot be loaded would fail every test, and prove none."""
    broken = mutation.apply(ROOT)
    if mutation.file.endswith(".py"):
        ast.parse(broken)
    elif mutation.file.endswith(".lua"):
        await redis_client.script_load(_whole_script(mutation.file.rpartition("/")[2], broken))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=by_name)
def test_the_tests_that_must_notice_it_exist(mutation: Mutation) -> None:
    for test in mutation.tests:
        path, _, name = test.partition("::")
        assert not name or name.partition("[")[0] in _functions(path), test


def test_every_mutation_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(map(by_name, MUTATIONS)).items() if count > 1] == []


@cache
def _functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def _whole_script(name: str, broken: str) -> str:
    """The script as it is loaded; a broken prelude before one of those that use it."""
    parts = {part: (FOLDER / "prelude" / f"{part}.lua").read_text() for part in PRELUDE}
    script = broken
    if (part := name.removesuffix(".lua")) in parts:
        parts[part], script = broken, (FOLDER / "finish.lua").read_text()
    shebang, _, body = script.partition("\n")
    return "\n".join([shebang, *parts.values(), body])

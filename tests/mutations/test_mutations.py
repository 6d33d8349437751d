"""The list of mutations fits today's code; `make mutations` runs them."""

import ast
from collections import Counter
from functools import cache

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from taskgate.contract.script import FOLDER, PRELUDE
from tests.mutations.catalog import ROOT, Mutation, load

MUTATIONS = load()


def by_name(mutation: Mutation) -> str:
    return mutation.name


async def test_each_mutation_fits_the_code_and_can_be_loaded(redis_client: Redis) -> None:
    """What cannot be loaded would fail every test, and prove none."""
    wrong: dict[str, str] = {}
    for mutation in MUTATIONS:
        try:
            await _load(mutation, redis_client)
        except (OSError, ValueError, SyntaxError, ResponseError) as error:
            wrong[mutation.name] = str(error)
    assert wrong == {}


def test_the_tests_that_must_notice_one_exist() -> None:
    missing = {
        (mutation.name, test) for mutation in MUTATIONS for test in mutation.tests if not _exists(*test.split("::"))
    }
    assert missing == set()


def test_every_mutation_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(map(by_name, MUTATIONS)).items() if count > 1] == []


async def _load(mutation: Mutation, redis_client: Redis) -> None:
    broken = mutation.apply(ROOT)
    if mutation.file.endswith(".py"):
        ast.parse(broken)
    elif mutation.file.endswith(".lua"):
        await redis_client.script_load(_whole_script(mutation.file.rpartition("/")[2], broken))


def _exists(path: str, name: str = "") -> bool:
    """A file of tests, or one of its tests."""
    return name.partition("[")[0] in _functions(path) if name else (ROOT / path).exists()


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

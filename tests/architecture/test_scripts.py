"""Rules of form for the Lua scripts, and that no Redis command stands outside of the store."""

import ast
import re
from pathlib import Path

import pytest

from taskgate.contract.script import FOLDER, PRELUDE, prelude
from taskgate.contract.states import Status

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.lua"))
REFUSED_AT_MAXMEMORY = {"submit", "redrive"}
ONLY_READ = {"read", "page", "pace", "queues", "unserved", "look_up_keys", "list_keys"}
OF_NO_TASK = {"keep_key", "list_keys", "look_up_keys", "revoke_key", "stream_secret", "use_keys"}
BINDING = re.compile(
    r"^local (?P<name>\w+) = "
    r"(?:ARGV\[(?P<text>\d+)\]|tonumber\(ARGV\[(?P<int>\d+)\]\)|cmsgpack\.unpack\(ARGV\[(?P<list>\d+)\]\)"
    r'|ARGV\[(?P<bool>\d+)\] == "1")'
    r" -- (?P<type>\w+)"
)
TYPES = {"text": {"string", "JSON"}, "int": {"int"}, "list": {"list"}, "bool": {"bool"}}
SLOW = {"KEYS", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "SORT", "FLUSHALL", "FLUSHDB"}
CLIENT_CALLS = {"execute_command", "evalsha", "eval", "register_script", "pipeline"}
"""What sends a command; other methods of the client are found by their reading like commands."""


def _lines(name: str) -> list[str]:
    return (FOLDER / f"{name}.lua").read_text().splitlines()


@pytest.mark.parametrize("name", SCRIPTS)
def test_only_what_brings_new_tasks_is_refused_at_maxmemory(name: str) -> None:
    shebang = _lines(name)[0]
    if name in ONLY_READ:
        assert shebang == "#!lua flags=no-writes"
    else:
        assert shebang == ("#!lua" if name in REFUSED_AT_MAXMEMORY else "#!lua flags=allow-oom")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_tells_transition_and_replies(name: str) -> None:
    header = re.sub(r"\([^)]*\)", "", " ".join(_header(name)))
    assert "Replies" in header
    words = re.findall(r"([\w |(),]+?) -> ([\w |]+)", header)
    stated = {word for pair in words for side in pair for word in re.findall(r"\w+", side)}
    named = stated & set(Status)
    written = {status for status in re.findall(r'"(\w+)"', "\n".join(_lines(name))) if status in set(Status)}
    if name in {"beat", "report", "goodbye", "trim", "nudge", "announce"} | ONLY_READ | OF_NO_TASK:
        assert named == set(), "these change no state"
    else:
        assert named, "which states it takes tasks from and to"
        assert written <= named | {"running", "canceling", "queued"}, written - named


def _header(name: str) -> list[str]:
    body = _lines(name)[1:]
    return [line.removeprefix("-- ") for line in body[: next(n for n, line in enumerate(body) if line[:2] != "--")]]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_binding_block_is_complete_and_in_order(name: str) -> None:
    """One line for each argument directly under the header, converted there and nowhere else."""
    lines = _lines(name)[1 + len(_header(name)) :]
    block = lines[: next(n for n, line in enumerate(lines) if not line)]
    indices = []
    for line in block:
        bound = BINDING.match(line)
        assert bound is not None, line
        [(kind, index)] = [(key, value) for key in TYPES if (value := bound[key]) is not None]
        assert bound["type"] in TYPES[kind], line
        indices.append(int(index))
    assert indices == list(range(2, 2 + len(indices))), "ARGV[1] is the clock, bound in the prelude"
    rest = "\n".join(lines[len(block) :])
    assert "ARGV" not in rest
    assert "KEYS" not in rest


def test_the_prelude_only_defines() -> None:
    """It is loaded before every script: but for the clock it calls nothing."""
    outside = re.sub(r"^local function .*?^end$", "", prelude(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r'redis\.call\("(\w+)"', outside) == ["TIME"]


@pytest.mark.parametrize("name", [*SCRIPTS, *(f"prelude/{part}" for part in PRELUDE)])
def test_no_script_looks_through_all_keys(name: str) -> None:
    commands = set(re.findall(r'redis\.p?call\(\s*"(\w+)"', "\n".join(_lines(name))))
    assert not commands & SLOW
    assert len(commands) == len(set(re.findall(r"redis\.p?call\(\s*([^,)]+)", "\n".join(_lines(name))))), "by name"


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_that_counts_writes_the_counts(name: str) -> None:
    source = "\n".join(_lines(name))
    counts = any(word in source for word in ("tally", "accept(", "requeue(", "purge(", "end_waiting("))
    assert counts == ("settle()" in source)


def test_every_script_is_one_method_of_the_store() -> None:
    store = "".join((FOLDER.parent / name).read_text() for name in ("key_store.py", "reading.py", "store.py"))
    assert sorted(re.findall(r'Script\(redis, "(\w+)"\)', store)) == SCRIPTS
    for name in SCRIPTS:
        assert f"async def {name}(" in store
        assert store.count(f"await self._{name}(") == 1


@pytest.mark.parametrize("folder", ["taskgate", "app", "workers"])
def test_no_redis_command_outside_of_the_store(folder: str) -> None:
    """Clients are made in connection.py, subscribed to in hubs and inboxes, and used by the store alone."""
    allowed = {f"taskgate/contract/{name}.py" for name in ("store", "reading", "script")}
    found = [
        f"{where}:{node.lineno}: {ast.unparse(node.func)}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (where := str(path.relative_to(ROOT))) not in allowed
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_command(node.func)
    ]
    assert found == []


def _is_command(call: ast.Attribute) -> bool:
    owner = ast.unparse(call.value).split(".")[-1].lstrip("_")
    if call.attr in CLIENT_CALLS:
        return call.attr != "eval" or "redis" in owner
    quiet = {"aclose", "close", "connection_pool", "from_pool", "from_url", "pubsub", "Redis", "get_connection"}
    return owner in ("redis", "redis_client") and call.attr.islower() and call.attr not in quiet


@pytest.mark.parametrize("folder", ["taskgate", "app", "workers"])
def test_no_key_is_built_outside_of_the_contract(folder: str) -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent.name != "contract" and re.search(r"""["']tg:\{""", path.read_text())
    ]
    assert found == []

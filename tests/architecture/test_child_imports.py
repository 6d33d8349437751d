"""What the execution side loads: in a fresh interpreter, since what this one has imported proves nothing."""

import subprocess
import sys

import pytest

_HEAVY = ["asyncio", "fastapi", "httpx", "msgspec", "pydantic", "redis", "structlog", "app", "workers"]


@pytest.mark.parametrize(
    ("entry", "forbidden"),
    [
        ("import taskgate", _HEAVY),
        (
            "from taskgate import handler, Attempt, Retry, Fail, child_start",
            ["fastapi", "pydantic", "redis", "workers"],
        ),
        ("import taskgate.testing", ["fastapi", "redis", "workers", "app"]),
        ("import workers.child", ["fastapi", "starlette", "uvicorn", "redis", "httpx", "app", "taskgate.settings"]),
        (
            "import workers.children",
            ["fastapi", "starlette", "uvicorn", "app", "taskgate.handlers", "workers.handlers"],
        ),
        ("import workers.guard", ["asyncio", "subprocess", "logging", "msgspec", "structlog", "taskgate"]),
    ],
)
def test_what_each_entry_loads(entry: str, forbidden: list[str]) -> None:
    probe = f"import sys; {entry}; print(*sorted(set(sys.modules) & set({forbidden!r})))"
    if entry.startswith("import workers"):
        probe = probe.replace("import sys;", "import sys, workers;", 1)

    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == []


def test_the_exports_of_the_package_are_real() -> None:
    import taskgate

    assert all(getattr(taskgate, name) is not None for name in taskgate.__all__)
    with pytest.raises(AttributeError):
        _ = taskgate.nothing

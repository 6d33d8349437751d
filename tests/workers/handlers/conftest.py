"""An output folder, and a small library for the census."""

from pathlib import Path

import pytest

from workers.handlers import output


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root that handlers may write below."""
    monkeypatch.setenv(output.ROOT_VARIABLE, str(tmp_path / "files"))
    return tmp_path / "files"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for the standard library: ten small modules, and what is not to be counted."""
    root = tmp_path / "library"
    for number in range(10):
        body = "\n".join(f"    total = total + {line}  # step" for line in range(number + 1))
        file = root / ("package" if number % 2 else "") / f"module{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"class Thing:\n    pass\n\n\ndef work{number}(total):\n{body}\n    return total\n")
    (root / "test").mkdir()
    (root / "test" / "ignored.py").write_text("ignored = 1\n")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(root)})
    return root

"""The peers' virtual environments: built once, outside the project's, named after what is in them."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).parent


def ensure(name: str = "") -> Path:
    """The environment's python, building the environment first if need be. `name`: of a peer that needs one of its own.

    Raises:
        OSError: it could not be built; the message is pip's.
    """
    files = [_HERE / f"{kind}{name and '-'}{name}.txt" for kind in ("requirements", "constraints")]
    folder = _cache() / f"peers-{_digest(files)}"
    if not folder.exists():
        _build(folder, *files)
    return folder / "bin" / "python"


def _build(folder: Path, requirements: Path, constraints: Path) -> None:
    print(f"building the peers' environment in {folder} (once)", file=sys.stderr)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".peers-", dir=folder.parent))
    try:
        # Renamed when whole: only bin/python is used, and that needs no path of its own.
        venv.create(unfinished, with_pip=True, symlinks=True)
        command = [str(unfinished / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["-r", str(requirements), "-c", str(constraints)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"the peers' environment could not be built:\n{done.stderr.strip()}")
        if not folder.exists():
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "taskgate-loadtest"


def _digest(files: Sequence[Path]) -> str:
    parts = [sys.version.encode(), *(file.read_bytes() for file in files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


if __name__ == "__main__":
    print(ensure(*sys.argv[1:]))

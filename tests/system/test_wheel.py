"""What an installation from a wheel has: every file of the packages, scripts and shipped assets included."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("taskgate", "app", "workers")


def test_a_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    """Without the network: the backend stands in the environment."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", tmp_path, ROOT], check=True)
    [wheel] = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.split("/")[0] in PACKAGES}
    here = {
        str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()
    }
    missing = {name for name in here if "__pycache__" not in name} - packed
    assert not missing
    assert any(name.endswith(".lua") for name in packed)
    assert "app/static/swagger-ui.css" in packed

"""Where the demo's handlers may write: below one root, in the folder that the payload names."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from taskgate import Fail

ROOT_VARIABLE = "DEMO_FILES"
Folder = Annotated[
    str, Field(min_length=1, max_length=200, description=f"folder below ${ROOT_VARIABLE}, or else ./demo-files")
]


def folder(name: str) -> Path:
    """The folder `name` below the root, made if need be.

    Raises:
        Fail: it lies outside of the root, also by a symbolic link, or cannot be made.
    """
    root = Path(os.environ.get(ROOT_VARIABLE) or "demo-files").resolve()
    path = (root / name).resolve() if "\0" not in name else root.parent
    if not path.is_relative_to(root):
        raise Fail(f"folder {name!r} is not below the output folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Fail(
            f"cannot make {path}: {error.strerror}; set {ROOT_VARIABLE} to a folder that can be written"
        ) from None
    return path


def missing(package: str) -> Fail:
    """What to raise when an optional package cannot be imported."""
    return Fail(f"the package {package} is not installed; install it with: pip install 'taskgate[demo]'")

"""Secrets given as files: `TASKGATE_X_FILE` names one that holds what `TASKGATE_X` would, as containers get them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

SUFFIX = "_FILE"
_LARGEST_BYTES = 64 * 1024


class SecretFileError(Exception):
    """One line per wrong variable; shows paths, never what a file holds."""


def read(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """What files say of the variables `names`; one that names no file is not in it.

    Raises:
        SecretFileError: a file cannot be read or holds nothing, or the variable itself is set as well.
    """
    found: dict[str, str] = {}
    wrong: list[str] = []
    for name in names:
        if not (path := environ.get(name + SUFFIX)):
            continue
        try:
            if environ.get(name):
                raise ValueError(f"{name} is set as well: set one of them")
            found[name] = _text(Path(path))
        except OSError as error:
            wrong.append(f"{name}{SUFFIX}: {path}: {error.strerror}")
        except ValueError as error:
            wrong.append(f"{name}{SUFFIX}: {error}")
    if wrong:
        raise SecretFileError("\n".join(wrong))
    return found


def _text(path: Path) -> str:
    """Without the line end that editors and `echo` put behind it. Read once: it may be a pipe."""
    with path.open("rb") as file:
        content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise ValueError(f"{path}: larger than a secret")
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not text in UTF-8") from None
    if not text:
        raise ValueError(f"{path}: empty")
    return text

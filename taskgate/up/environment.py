"""What the processes of `up` get to know: services every setting as a variable, handlers none."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from taskgate.secret_files import SUFFIX
from taskgate.settings import SECRET_FILES, Settings, variable


def environment(settings: Settings, **changed: Any) -> dict[str, str]:
    """`changed`: settings that are others for the service. None and () mean: not set.

    A secret is a file, wherever it came from: others see environments.
    """
    values = {name: getattr(settings, name) for name in Settings.model_fields} | changed
    texts = dict(_given(variable(name), value) for name, value in values.items())
    return {**without_settings(), **{name: text for name, text in texts.items() if text}}


def without_settings() -> dict[str, str]:
    """What handlers may see: this process' environment without ours, some of which is secret."""
    ours = {variable(name) for name in Settings.model_fields} | SECRET_FILES
    return {name: value for name, value in os.environ.items() if name not in ours}


def _given(name: str, value: Any) -> tuple[str, str]:
    if isinstance(value, SecretStr):
        return name + SUFFIX, _in_memory(value.get_secret_value())
    return name, _text(value)


@cache
def _in_memory(secret: str) -> str:
    """A file that is there as long as this process and is on no disk: where the secret came from may be a pipe."""
    fd = os.memfd_create("taskgate-secret")
    with open(fd, "wb", closefd=False) as file:
        file.write(secret.encode())
    return f"/proc/{os.getpid()}/fd/{fd}"


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case tuple():
            return ",".join(value)
        case Path():
            return str(value.absolute())
        case bool():
            return str(value).lower()
    return str(value)

"""What the processes of `up` get to know: services every setting as a variable, handlers none."""

import os
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from taskgate.settings import SECRET_FILES, Settings, variable


def environment(settings: Settings, **changed: Any) -> dict[str, str]:
    """`changed`: settings that are others for the service. None and () mean: not set."""
    values = {name: getattr(settings, name) for name in Settings.model_fields} | changed
    texts = {variable(name): _text(value) for name, value in values.items()}
    return {**without_settings(), **{name: text for name, text in texts.items() if text}}


def without_settings() -> dict[str, str]:
    """What handlers may see: this process' environment without ours, some of which is secret."""
    ours = {variable(name) for name in Settings.model_fields} | SECRET_FILES
    return {name: value for name, value in os.environ.items() if name not in ours}


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case SecretStr():
            return value.get_secret_value()
        case tuple():
            return ",".join(value)
        case Path():
            return str(value.absolute())
        case bool():
            return str(value).lower()
    return str(value)

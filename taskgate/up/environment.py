"""What a service of `up` gets to know: this process' environment, with every setting as a variable."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from taskgate.settings import PREFIX, Settings


def environment(settings: Settings, **changed: Any) -> dict[str, str]:
    """`changed`: settings that are others for the service. None and () mean: not set."""
    values = {name: getattr(settings, name) for name in Settings.model_fields} | changed
    texts = {PREFIX + name.upper(): _text(value) for name, value in values.items()}
    return {**_without(os.environ, texts), **{name: text for name, text in texts.items() if text}}


def _without(environ: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


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

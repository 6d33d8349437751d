"""The settings of a service command, and where each value came from."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import SecretStr

from taskgate.secret_files import SUFFIX
from taskgate.settings import PREFIX, SECRETS, Settings, SettingsError, load, variable

MASK = "********"


class Configuration(NamedTuple):
    settings: Settings
    sources: Mapping[str, str]
    """Field → `option`, `environment`, `file` (a secret's) or `default`."""

    @classmethod
    def of(cls, options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> "Configuration":
        """Validate what was given; a line about an option names the option, not the variable.

        Raises:
            SettingsError: one line per wrong setting.
        """
        environ = os.environ if environ is None else environ
        given = {name for name, value in options.items() if value is not None}
        try:
            settings = load(environ, **options)
        except SettingsError as error:
            raise SettingsError("\n".join(_named(line, given) for line in str(error).splitlines())) from None
        return cls(settings, {name: _source(name, given, environ) for name in Settings.model_fields})

    def shown(self, name: str) -> str:
        """The value as people read it; a secret is masked whole, since any part of a URL may be its password."""
        value = getattr(self.settings, name)
        if isinstance(value, SecretStr):
            return MASK
        if isinstance(value, tuple):
            return ",".join(value)
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _source(name: str, given: set[str], environ: Mapping[str, str]) -> str:
    if name in given:
        return "option"
    if environ.get(variable(name)):
        return "environment"
    return "file" if name in SECRETS and environ.get(variable(name) + SUFFIX) else "default"


def _named(line: str, given: set[str]) -> str:
    variable, colon, rest = line.partition(":")
    name = variable.removeprefix(PREFIX).lower()
    return f"--{name.replace('_', '-')}{colon}{rest}" if colon and name in given else line

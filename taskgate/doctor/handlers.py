"""What the handlers ask for. They are loaded in a process of their own: this one runs no user code."""

import functools
import json
import subprocess
import sys
from typing import NamedTuple

from taskgate.doctor.finding import Finding, judge

_WITHIN_S = 60
_PROGRAM = """
import json, sys
from taskgate import handlers
loaded = handlers.load(sys.argv[1:])
print(json.dumps([(e.type, e.kind, e.options.timeout_s, e.options.memory_limit_mb) for e in loaded.values()]))
"""


class Declared(NamedTuple):
    """A task type, as its handler asks for it."""

    type: str
    kind: str
    timeout_s: float
    memory_limit_mb: int | None


class Handlers(NamedTuple):
    loaded: Finding
    types: list[Declared]

    @property
    def limits_mb(self) -> list[int | None]:
        """The memory limit of each sync type."""
        return [each.memory_limit_mb for each in self.types if each.kind == "sync"]


@functools.cache
def declared(modules: tuple[str, ...]) -> Handlers:
    """Whether they load, and what they are."""
    command = [sys.executable, "-c", _PROGRAM, *modules]
    error = ""
    types: list[Declared] = []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
        if done.returncode == 0:
            types = [Declared(*each) for each in json.loads(done.stdout.splitlines()[-1])]
        else:
            error = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        error = f"not loaded within {_WITHIN_S} s"
    except (ValueError, IndexError):
        error = "they end the process that loads them"
    limits = [each.memory_limit_mb for each in types if each.kind == "sync"]
    bounded = sum(limit is not None for limit in limits)
    finding = judge(
        "handlers",
        error or f"{', '.join(modules)}; {bounded} of {len(limits)} sync types have a memory_limit_mb",
        fail=bool(error),
        advice="children could not start: --handlers names modules to import",
    )
    return Handlers(finding, types)

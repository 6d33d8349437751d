"""What the handlers ask for. They are loaded in a process of their own: this one runs no user code."""

import functools
import json
import subprocess
import sys

from taskgate.doctor.finding import Finding, judge

_WITHIN_S = 60
_PROGRAM = """
import json, sys
from taskgate import handlers
loaded = handlers.load(sys.argv[1:])
print(json.dumps([each.options.memory_limit_mb for each in loaded.values() if each.kind == "sync"]))
"""


@functools.cache
def declared(modules: tuple[str, ...]) -> tuple[Finding, list[int | None]]:
    """Whether they load, and the memory limit of each sync type."""
    command = [sys.executable, "-c", _PROGRAM, *modules]
    error = ""
    limits: list[int | None] = []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
        if done.returncode == 0:
            limits = json.loads(done.stdout.splitlines()[-1])
        else:
            error = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        error = f"not loaded within {_WITHIN_S} s"
    except (ValueError, IndexError):
        error = "they end the process that loads them"
    bounded = sum(limit is not None for limit in limits)
    finding = judge(
        "handlers",
        error or f"{', '.join(modules)}; {bounded} of {len(limits)} sync types have a memory_limit_mb",
        fail=bool(error),
        advice="children could not start: --handlers names modules to import",
    )
    return finding, limits

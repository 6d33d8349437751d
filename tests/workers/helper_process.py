"""A module that starts a process once per child, for all its tasks."""

import subprocess
from typing import Any

from taskgate import child_start, handler

_started: "list[subprocess.Popen[bytes]]" = []


@child_start
def start() -> None:
    _started.append(subprocess.Popen(["sleep", "3600"]))


@handler("helper_lives")
def helper_lives(payload: Any) -> bool:
    return _started[0].poll() is None
